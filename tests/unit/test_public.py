"""What a user types and reads: public names and the fields of public models are there and say what they are; tests stay on this machine."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Iterator
from typing import get_origin

import pytest

import cantata
from cantata.flows import definitions, wire
from cantata.values import Value

PLAIN = {"type"}
"""Fields that say what they are: the constant word of a message on the wire."""


def public_models() -> Iterator[type[Value]]:
    for module in (definitions, wire):
        for thing in vars(module).values():
            if inspect.isclass(thing) and issubclass(thing, Value) and thing.__module__ == module.__name__:
                yield thing


@pytest.mark.parametrize("name", cantata.__all__)
def test_a_public_name_can_be_imported_and_says_what_it_is(name: str) -> None:
    thing = getattr(cantata, name)

    if get_origin(thing):  # a class with the types of its methods filled in
        thing = get_origin(thing)
    else:
        assert thing.__name__ == name
    assert inspect.getdoc(thing)
    assert thing.__doc__ if inspect.isfunction(thing) else vars(thing).get("__doc__"), (
        "a docstring of its own, not its parent's"
    )


@pytest.mark.parametrize("name", ["Client", "Run", "TurnRun", "ChainRun", "PromptChain", "AgentChain"])
def test_each_method_of_a_public_class_says_what_it_promises(name: str) -> None:
    methods = inspect.getmembers(getattr(cantata, name), inspect.isroutine)

    assert [each for each, method in methods if not each.startswith("_") and not inspect.getdoc(method)] == []


def test_public_names_are_those_that_have_a_home() -> None:
    assert sorted(cantata.__all__) == sorted(cantata._HOMES)


def test_a_shell_completes_the_public_names() -> None:
    assert set(cantata.__all__) <= set(dir(cantata)), "modules that import names late list them by __dir__"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        _ = cantata.Cleint


@pytest.mark.parametrize("model", list(public_models()), ids=lambda model: model.__name__)
def test_each_field_of_a_public_model_has_a_phrase(model: type[Value]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description and name not in PLAIN] == []
    assert inspect.getdoc(model)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_tests_cannot_leave_this_machine(host: str, hosts_refused: list[str]) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(family, kind) as sock, pytest.raises(RuntimeError, match="must not reach"):
            sock.connect((host, 80))

    assert hosts_refused == [host, host]
    hosts_refused.clear()


def test_tests_cannot_look_up_other_machines(hosts_refused: list[str]) -> None:
    with pytest.raises(RuntimeError, match=r"must not reach 'api\.openai\.com'"):
        socket.create_connection(("api.openai.com", 443))

    hosts_refused.clear()
