"""The queues from which a worker begins nothing now: shared with its prefork children, which read it before each step."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable

ALL, RELEASE = 0, 1  # bytes before those of the queues


class QueueHolds:
    """One byte for each queue that a worker may begin steps of; reading one takes no lock and no call."""

    def __init__(self, queues: Iterable[str] = ()) -> None:
        self._places = {queue: place for place, queue in enumerate(dict.fromkeys(queues), start=RELEASE + 1)}
        self._bytes = mmap.mmap(-1, RELEASE + 1 + len(self._places))

    def has(self, queue: str) -> bool:
        """Return whether nothing of this queue may begin here."""
        return bool(self._bytes[ALL] or self._bytes[self._places.get(queue, ALL)])

    def finish(self) -> None:
        """Let nothing begin any more: another process, with newer code, serves the queues from now on."""
        self._bytes[ALL] = 1

    def set(self, queues: Collection[str]) -> None:
        """Hold these queues, and no others."""
        for queue, place in self._places.items():
            self._bytes[place] = queue in queues

    @property
    def releases(self) -> bool:
        """True if running steps are to be released: their worker was drained, and the time is over."""
        return bool(self._bytes[RELEASE])

    @releases.setter
    def releases(self, value: bool) -> None:
        self._bytes[RELEASE] = value
