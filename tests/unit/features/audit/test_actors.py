"""Actors: whose name counts, and in which block."""

from __future__ import annotations

import getpass
import socket
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from cantata.features.audit.actors import Actor, acting_as, current_actor, local_actor, one_line

TOKEN = Actor(name="billing", via="http", address="10.0.0.1", tenant="acme", verified=True)


def test_whoever_runs_a_program_acts_and_that_is_a_claim() -> None:
    actor = current_actor()

    assert actor.name == f"{getpass.getuser()}@{socket.gethostname()}"
    assert (actor.via, actor.verified) == ("python", False)
    assert local_actor("cli").via == "cli"


def test_a_name_that_an_actor_gives_itself_is_a_claim() -> None:
    assert TOKEN.named("") is TOKEN
    assert TOKEN.named("billing").verified
    assert TOKEN.named("boss").model_dump(include={"name", "verified", "via"}) == {
        "name": "boss",
        "verified": False,
        "via": "http",
    }


def test_somebody_acts_in_a_block_and_in_threads_that_it_starts_and_nowhere_else() -> None:
    with ThreadPoolExecutor(1) as pool:
        with acting_as(TOKEN), acting_as(Actor(name="inner")) as inner:
            assert current_actor() is inner
            assert pool.submit(copy_context().run, current_actor).result() is inner
        assert pool.submit(current_actor).result().via == "python"
    assert current_actor().via == "python"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("ann\nroot@host done", "ann root@host done"),
        ("\x1b[31mred\x1b[0m", "[31mred [0m"),
        (" a \t b ", "a b"),
        ("a" * 300, "a" * 200),
        ("\u202eevil", "evil"),
        ("", ""),
    ],
)
def test_a_name_is_one_line_of_printable_characters(given: str, shown: str) -> None:
    assert one_line(given) == shown
