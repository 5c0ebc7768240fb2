"""Which configuration is taken, and what is said of one that cannot be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cantata.config.chain_requests import is_request, kind_faults, load_request
from cantata.config.documents import Document, parse
from cantata.config.loading import BUILT_IN, find, load, load_sound, native, opened
from cantata.errors import ConfigError, Fault
from cantata.settings import settings

GOOD = "{agents: {solo: {}}, defaults: {agent: solo}}"


@pytest.fixture(autouse=True)
def _bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("REDIS_URL", "CANTATA_BROKER_URL", "CANTATA_HOME", "CANTATA_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return str(caught.value)


# find


def test_the_command_line_wins_over_the_environment_and_that_over_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find() is None

    Path("configs").mkdir()
    Path("configs/default.yaml").write_text(GOOD)
    assert find() == Path("configs/default.yaml")

    Path("mine.yaml").write_text(GOOD)
    monkeypatch.setenv("CANTATA_CONFIG", "mine.yaml")
    assert find() == Path("mine.yaml")

    assert find("other.yaml") == Path("other.yaml")


def test_a_variable_that_names_no_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_CONFIG", "gone.yaml")

    with pytest.raises(ConfigError, match=r"^gone.yaml: CANTATA_CONFIG names this file, but it does not exist"):
        find()


# load


def test_without_a_file_there_is_an_assistant() -> None:
    assert load(None) == BUILT_IN
    assert BUILT_IN.defaults.agent in BUILT_IN.agents


def test_functions_and_texts_come_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    Path("sub/tools.py").write_text("def f(): ...")
    Path("sub/text.md").write_text("Be brief.")
    Path("sub/mine.yaml").write_text("{tools: {f: {function: 'tools:f'}}, agents: {a: {system: text.md}}}")

    definitions = load(Path("sub/mine.yaml"))

    assert definitions.folder == str(tmp_path / "sub")
    assert definitions.agents["a"].system == "Be brief."


def test_a_file_that_cannot_be_read_is_told_in_one_sentence(tmp_path: Path) -> None:
    Path("bytes.yaml").write_bytes(b"a: \xff")

    assert refusal(Path("gone.yaml")) == "gone.yaml: this file does not exist"
    assert refusal(tmp_path).startswith(
        f"{tmp_path}: this folder has no configuration file; expected one of config.yml, config.yaml, langswarm.yaml,"
    )
    assert refusal(Path("bytes.yaml")) == "bytes.yaml: this file is not UTF-8 text: byte 3 is invalid"


def test_each_fault_of_a_file_is_a_line_with_its_name() -> None:
    Path("mine.yaml").write_text("agnets: {}\ndefaults: {team: x}")

    assert refusal(Path("mine.yaml")).splitlines() == [
        "mine.yaml: line 1: agnets: unknown key 'agnets'; did you mean 'agents'?",
        "mine.yaml: line 2: defaults.team: there is no team 'x'",
    ]


def test_a_file_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def counted(text: str, *, source: str) -> Document:
        parsed.append(source)
        return parse(text, source=source)

    monkeypatch.setattr("cantata.config.loading.parse", counted)
    Path("good.yaml").write_text(GOOD)

    assert load_sound(Path("good.yaml")).definitions.agents.keys() == {"solo"}
    assert parsed == ["good.yaml"]


def test_what_chains_name_is_told_with_its_line() -> None:
    Path("bad.yaml").write_text(
        "chains:\n  c:\n    entry_node: a\n    nodes:\n      - {node_id: a, kind: tool, name: gone}\n"
    )

    assert "c" in load(Path("bad.yaml")).chains
    with pytest.raises(ConfigError, match=r"line 5: chains.c.nodes\[0\] 'a'.name: 'gone' is not under 'tools'"):
        load_sound(Path("bad.yaml"))


def test_a_chain_request_is_not_taken_for_a_configuration() -> None:
    Path("chain.json").write_text('{"nodes": []}')

    assert (
        refusal(Path("chain.json"))
        == "chain.json: this is a chain request, not a configuration; `submit chain` runs it"
    )


# a file as what it is


def faults_of(path: Path) -> list[Fault]:
    """The faults of a configuration, or of the form of a chain request."""
    try:
        document = opened(path)
        assert isinstance(document, Document)
        if is_request(document):
            load_request(document)
            return list(kind_faults(document, "nodes.*.kind"))
        native(document, path)
    except ConfigError as error:
        return list(error.faults)
    return []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (GOOD, []),
        ("{nodes: [{node_id: a, kind: tool}], entry_node: a}", []),
        ("{nodes: [{node_id: a, kind: tol}]}", ["nodes[0] 'a'.kind"]),
        ("type: chain/req", [""]),
        ("agents: {a: 1, b: 2}", ["agents.a", "agents.b"]),
        ("agents: [", [""]),
    ],
)
def test_a_file_is_checked_as_what_it_is(text: str, faults: list[str]) -> None:
    Path("file").write_text(text)

    assert [fault.where for fault in faults_of(Path("file"))] == faults


def test_a_missing_file_is_a_fault() -> None:
    assert [str(fault) for fault in faults_of(Path("gone.yaml"))] == ["this file does not exist"]


# settings


def test_a_wrong_namespace_is_told_in_our_words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_NAMESPACE", "A:b")

    with pytest.raises(ConfigError, match=r"^environment: CANTATA_NAMESPACE: a namespace has 1 to 40 of"):
        settings()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("http://jaeger:16686/trace/{trace_id}", ""),
        ('https://grafana/explore?left={"q":"{trace_id}","s":"{span_id}"}'.replace('"', "%22"), ""),
        ("http://jaeger/trace/", "there is no {trace_id}"),
        ("http://jaeger/{traceID}/{trace_id}", "'traceID' is neither"),
        ("javascript:alert('{trace_id}')", "begins with http:// or https://"),
        ("http:///{trace_id}", "begins with http:// or https://"),
        ("http://jaeger/ {trace_id}", "no spaces"),
    ],
)
def test_the_address_of_traces_is_checked_at_the_start(
    template: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTATA_TRACE_URL", template)

    if not message:
        assert settings().trace_url == template
        return
    with pytest.raises(ConfigError, match=f"^environment: CANTATA_TRACE_URL: .*{re.escape(message)}"):
        settings()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:secret@host/0")
    monkeypatch.setenv("CANTATA_BROKER_URL", "amqp://user:secret@host")
    monkeypatch.setenv("CANTATA_HOME", "")

    now = settings()

    assert now.redis_url == "redis://:secret@host/0"
    assert now.broker_url == "amqp://user:secret@host"
    assert now.home == Path(".cantata")
    assert now.config is None
    assert "secret" not in repr(now)
