"""Ports that a stack binds before it starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from cantata.operation.embedded import ports
from cantata.operation.embedded.home import Home


@pytest.fixture
def usual() -> Iterator[socket.socket]:
    """A socket on the port that a service usually has, which is free once this is closed."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken


def test_a_port_is_bound_before_anything_starts(home: Home, usual: socket.socket) -> None:
    number = usual.getsockname()[1]
    usual.close()

    bound = ports.bind(home, {"gateway": number})

    assert bound["gateway"].number == number
    with socket.create_connection(("127.0.0.1", number)), socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", number))
    ports.close(bound)


def test_a_port_that_was_chosen_is_kept_for_the_folder(home: Home, usual: socket.socket) -> None:
    home.prepare()
    number = usual.getsockname()[1]
    first = ports.bind(home, {"gateway": number})
    chosen = first["gateway"].number
    ports.save(home, {"gateway": chosen})
    ports.close(first)
    usual.close()

    again = ports.bind(home, {"gateway": number})

    assert (again["gateway"].number, again["gateway"].wanted) == (chosen, number)
    assert chosen != number
    ports.close(again)


@pytest.mark.parametrize("text", ["", "[]", '{"gateway": null}', '{"gateway": 99999}'])
def test_ports_that_cannot_be_read_are_chosen_again(home: Home, text: str) -> None:
    home.prepare()
    (home.path / "ports.json").write_text(text)

    bound = ports.bind(home, {"gateway": 0})

    assert 0 < bound["gateway"].number < 65536
    ports.close(bound)
