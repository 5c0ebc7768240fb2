from __future__ import annotations

from cantata.engine.fleet import code_versions


def test_modules_of_one_version_are_no_mixture() -> None:
    assert code_versions.find_mixed(["a@1", "b@2", "a@1"]) == {}
    assert code_versions.describe_mixed(["a@1"]) == ""
    assert code_versions.describe_served({"one": ["a@1"], "other": ["a@1", "b@2"], "idle": []}) == ""


def test_versions_of_a_module_are_told_with_those_that_serve_them() -> None:
    assert code_versions.describe_mixed(["a@2", "a@1", "b@1"]) == "a (1, 2)"
    assert (
        code_versions.describe_served({"one": ["a@1"], "two": ["a@2"], "three": ["a@1", "b@1"]})
        == "a: 1 by one and three, 2 by two"
    )


def test_of_many_workers_some_are_named() -> None:
    fleet = {f"w{number}": ["a@1"] for number in range(6)} | {"new": ["a@2"]}

    assert code_versions.describe_served(fleet) == "a: 1 by w0 and w1 and w2 and 3 more, 2 by new"
