"""One record that cannot be read, among three good ones: a row of its list that says so, over Client, HTTP and the command line.

Each can be removed by the command that its row names.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from redis import Redis

from cantata.client.client import Client
from cantata.engine.fleet import registry
from cantata.engine.fleet.registry import Worker
from cantata.engine.limits.limiter import LIMITS_KEY, paused_models
from cantata.errors import ConfigError, StoredDataError
from cantata.features.batches.batch_store import BatchTarget
from cantata.features.schedules.schedule_store import scope_of
from cantata.flows.definitions import Agent, Definitions
from cantata.flows.schedules import Schedule
from cantata.ledger.conversations import scoped
from cantata.ledger.records import RunSession
from cantata.ledger.redis.keys import id_in_shard, key_of, memory_key, shard_key, shard_of
from cantata.ledger.runs import outcomes
from cantata.surfaces.cli.main import submit
from cantata.testing import ScriptedModels
from tests.integration.gateway.conftest import Deployment, Gateway
from tests.integration.state.play import Play, wait, work
from tests.integration.test_threads import url_of

BAD = "bad"
GOOD = ("good1", "good2", "good3")
YEAR_9999 = "253402300799000"  # ms
DEEP = "[" * 200 + "]" * 200
DEFINITIONS = Definitions(agents={"writer": Agent(description="Writes.")})
HOURLY: Mapping[str, Any] = {"every": "1h", "turn": {"text": "report", "agent": "writer"}}
WORKER = Worker(name=BAD, queues=("tools",), concurrency=1, pid=1, host="h", version="1", started_at=0.0)
RUNS = {name: id_in_shard(7, f"{name}x") for name in (*GOOD, BAD)}
SHARD = shard_key(None, 7)

Spoil = Callable[[Redis], object]
Rows = Mapping[str, str]
"""Name in a list -> why it cannot be read."""


@dataclass(frozen=True)
class Kind:
    """A list, with four records."""

    make: Callable[[Client], object]
    listed: Callable[[Client], Rows]
    path: str
    """Of the list over HTTP; its rows are the first list of the reply."""
    name_of: Callable[[Mapping[str, Any]], str]
    command: str
    """That lists it, without --json."""
    remove: str
    """What its row names, and what removes the bad one."""
    spoils: Mapping[str, Spoil]


def other_type(key: str) -> Spoil:
    """Replace a key by a text."""

    def spoil(redis: Redis) -> None:
        assert redis.delete(key) == 1
        redis.set(key, "a text")

    return spoil


def field(key: str, name: str, value: str | None) -> Spoil:
    """Replace a field of a hash, or remove it."""

    def spoil(redis: Redis) -> None:
        assert redis.hexists(key, name)
        redis.hdel(key, name) if value is None else redis.hset(key, name, value)

    return spoil


def texts(rows: list[Any], name_of: Callable[[Any], str]) -> Rows:
    return {name_of(row): row.unreadable for row in rows}


# --- the lists ----------------------------------------------------------------------------------------------------------


def name_of_run(run_id: str) -> str:
    return next(name for name, each in RUNS.items() if each == run_id)


def make_runs(client: Client) -> None:
    for run_id in RUNS.values():
        Play(client.ledger, run_id, text="hello").plan(work("a"))


def make_waits(client: Client) -> None:
    for run_id in RUNS.values():
        Play(client.ledger, run_id, text="hello").plan(wait("a", params={"wait": {"question": "Shall we?"}}))


def make_schedules(client: Client) -> None:
    for name in (*GOOD, BAD):
        client.schedules.create(name, HOURLY)


def make_batches(client: Client) -> None:
    for name in (*GOOD, BAD):
        client.batches.open(name, BatchTarget(kind="agent", name="writer"))


def play_session(client: Client, name: str, tenant: str = "") -> None:
    session = RunSession(scoped(tenant, name), 3600.0, 100, 10)
    run_id = id_in_shard(shard_of(session.name), f"{name}y")
    play = Play(client.ledger, run_id, text="hello", session=session, labels={"tenant": tenant} if tenant else None)
    play.plan(work("a"), terminals=("a",))
    play.do("a", "answer")


def make_sessions(client: Client) -> None:
    for name in (*GOOD, BAD):
        play_session(client, name)


def make_workers(client: Client) -> None:
    for name in (*GOOD, BAD):
        registry.announce(client.redis, WORKER.model_copy(update={"name": name}))


def make_parked(client: Client) -> None:
    for name, run_id in RUNS.items():
        Play(client.ledger, run_id).plan(work("a"))
        for _ in range(3):
            client.ledger.parked.record_failure(7, "lost", f"{run_id}|a", f"{name} broke")


BAD_RUN = f"{SHARD}:run:{RUNS[BAD]}"
BAD_SCHEDULE = f"{shard_key(None, shard_of(scope_of('', BAD)))}:schedule:{scope_of('', BAD)}"
BAD_BATCH = f"{shard_key(None, shard_of('batches/'))}:batch:{scoped('', BAD)}"
BAD_SESSION = f"{shard_key(None, shard_of(scoped('', BAD)))}:session:{scoped('', BAD)}"
PARKED = (f"{SHARD}:parked", f"lost|{RUNS[BAD]}|a")

KINDS = {
    "runs": Kind(
        make_runs,
        lambda client: texts([*client.of(None).newest(10)], lambda row: name_of_run(row.run_id)),
        "/runs", lambda row: name_of_run(row["run_id"]), "runs list", f"runs cancel {RUNS[BAD]}",
        {
            "labels that are no JSON": field(BAD_RUN, "labels", "no JSON"),
            "labels 200 levels deep": field(BAD_RUN, "labels", DEEP),
            "a count that is no number": field(BAD_RUN, "count", "many"),
            "a status of another version": field(BAD_RUN, "status", "pondering"),
            "another type": other_type(BAD_RUN),
        },
    ),
    "Client.runs": Kind(
        make_runs,
        lambda client: texts(client.runs(), lambda row: name_of_run(row.run_id)),
        "", lambda row: "", "", f"runs cancel {RUNS[BAD]}",
        {
            "a missing field": field(BAD_RUN, "request", None),
            "a time that is no number": field(BAD_RUN, "created_at", "noon"),
            "another type": other_type(BAD_RUN),
        },
    ),
    "inbox": Kind(
        make_waits,
        lambda client: texts(client.inbox(), lambda row: name_of_run(row.run_id)),
        "/inbox", lambda row: name_of_run(row["run_id"]), "inbox list", f"runs cancel {RUNS[BAD]}",
        {
            "a spec that is no JSON": field(f"{BAD_RUN}:steps", "a", "no JSON"),
            "a spec 200 levels deep": field(f"{BAD_RUN}:steps", "a", f'{{"kind":"wait","params":{{"wait":{DEEP}}}}}'),
            "a spec of another form": field(f"{BAD_RUN}:steps", "a", '{"kind":"wait","params":{"wait":{"who":1}}}'),
            "info that is no JSON": lambda redis: redis.hset(f"{BAD_RUN}:info", "a", "no JSON"),
            "another type": other_type(f"{BAD_RUN}:steps"),
        },
    ),
    "schedules": Kind(
        make_schedules,
        lambda client: texts(client.schedules.list(), lambda row: row.name),
        "/schedules", lambda row: str(row["name"]), "schedules list", f"schedules delete {BAD}",
        {
            "a spec that is no JSON": field(BAD_SCHEDULE, "spec", "no JSON"),
            "a spec 200 levels deep": field(BAD_SCHEDULE, "spec", DEEP),
            "a time of the year 9999": lambda redis: redis.hset(
                BAD_SCHEDULE, mapping={"next": YEAR_9999, "spec": '{"cron":"0 0 * * *","turn":{"text":"x"}}'}
            ),
            "a missing field": field(BAD_SCHEDULE, "definitions", None),
            "a word of another version": field(BAD_SCHEDULE, "spec", '{"every":"1h","overlap":"sometimes","turn":{"text":"x"}}'),
            "another type": other_type(BAD_SCHEDULE),
        },
    ),
    "batches": Kind(
        make_batches,
        lambda client: texts([*client.batches.newest()], lambda row: row.name),
        "/batches", lambda row: str(row["name"]), "batch list", f"batch cancel {BAD}",
        {
            "an identity that is no JSON": field(BAD_BATCH, "identity", "no JSON"),
            "labels 200 levels deep": field(BAD_BATCH, "labels", DEEP),
            "a missing field": field(BAD_BATCH, "created_at", None),
            "a state of another version": field(BAD_BATCH, "state", "pondering"),
            "a count that is no number": field(BAD_BATCH, "delivered", "many"),
            "another type": other_type(BAD_BATCH),
        },
    ),
    "sessions": Kind(
        make_sessions,
        lambda client: texts(client.sessions.list(), lambda row: row.session),
        "/sessions", lambda row: str(row["session"]), "sessions list", f"sessions clear {BAD}",
        {"another type": other_type(f"{BAD_SESSION}:history")},
    ),
    "parked": Kind(
        make_parked,
        lambda client: texts(client.ledger.parked.find(), lambda row: name_of_run(row.item.partition("|")[0])),
        "", lambda row: name_of_run(row["item"].partition("|")[0]), "parked list", "parked drop",
        {
            "no JSON": field(*PARKED, "no JSON"),
            "a missing field": field(*PARKED, '{"parked":true}'),
            "200 levels": field(*PARKED, DEEP),
        },
    ),
    "workers": Kind(
        make_workers,
        lambda client: texts(registry.workers(client.redis), lambda row: row.name),
        "/workers", lambda row: str(row["name"]), "", "",
        {
            "no JSON": lambda redis: redis.hset(key_of(redis, registry.WORKERS_KEY), BAD, "no JSON"),
            "200 levels": lambda redis: redis.hset(key_of(redis, registry.WORKERS_KEY), BAD, DEEP),
            "a missing field": lambda redis: redis.hset(key_of(redis, registry.WORKERS_KEY), BAD, f'{{"name":"{BAD}"}}'),
            "a time of the year 9999": lambda redis: redis.hset(
                key_of(redis, registry.WORKERS_KEY), BAD,
                WORKER.model_copy(update={"seen_at": 253402300799.0}).model_dump_json(),
            ),
        },
    ),
}  # fmt: skip
CASES = [(f"{name}: {what}", kind, spoil) for name, kind in KINDS.items() for what, spoil in kind.spoils.items()]


def each(is_wanted: Callable[[str, Kind], object]) -> pytest.MarkDecorator:
    """Run a test with each case that is wanted, of those of its name and list."""
    found = [pytest.param(kind, spoil, id=name) for name, kind, spoil in CASES if is_wanted(name, kind)]
    return pytest.mark.parametrize(("kind", "spoil"), found)


# --- what serves them ---------------------------------------------------------------------------------------------------


@pytest.fixture
def client(valkey: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of an empty ledger, which the command line uses too."""
    valkey.flushdb()
    monkeypatch.setenv("REDIS_URL", url_of(valkey))
    monkeypatch.setenv("COLUMNS", "400")
    with Client(url_of(valkey), config=DEFINITIONS) as client:
        yield client
    valkey.flushdb()


@pytest.fixture(scope="module")
def gateway(valkey: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway of the same ledger."""

    class Stack:
        url = url_of(valkey)

    with (
        ScriptedModels() as models,
        Deployment(tmp_path_factory.mktemp("gateway"), Stack, models).gateway("--rate", "10000") as found,  # type: ignore[arg-type]  # of a stack it reads the address
    ):
        yield found


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.http() as found:
        yield found


def run(words: str) -> Result:
    return CliRunner().invoke(submit, words.split())


def check(rows: Rows, remedy: str = "") -> None:
    """The three good ones are served, and the bad one says what is wrong, and what removes it."""
    assert set(rows) == {*GOOD, BAD}
    assert [rows[name] for name in GOOD] == ["", "", ""]
    assert rows[BAD].startswith("it cannot be read (")
    assert remedy in rows[BAD]


def removal_of(kind: Kind, client: Client) -> str:
    """The command that removes the bad one; empty if `submit` has none."""
    if kind.remove != "parked drop":
        return kind.remove
    return f"parked drop {next(item.id for item in client.ledger.parked.find() if item.unreadable)}"


@each(lambda name, kind: True)
def test_it_is_a_row_for_programs_and_can_be_removed(kind: Kind, spoil: Spoil, client: Client) -> None:
    kind.make(client)
    assert dict(kind.listed(client)) == dict.fromkeys([*GOOD, BAD], "")

    spoil(client.redis)

    remove = removal_of(kind, client)
    check(kind.listed(client), remove and f"submit {remove}")
    if remove:
        removed = run(remove)
        assert removed.exit_code == 0, removed.output
        after = kind.listed(client)
        assert {name: after[name] for name in GOOD} == dict.fromkeys(GOOD, "")
        assert BAD not in after or client.ledger.runs.status(RUNS[BAD]) == "cancelled"


@each(lambda name, kind: kind.path and name != "runs: another type")
def test_it_is_a_row_over_http(kind: Kind, spoil: Spoil, client: Client, http: httpx.Client) -> None:
    kind.make(client)
    spoil(client.redis)

    reply = http.get(kind.path)

    assert reply.status_code == 200, reply.text
    found = next(each for each in reply.json().values() if isinstance(each, list))
    check({kind.name_of(row): row["unreadable"] for row in found}, kind.remove and f"submit {kind.remove}")


def test_a_run_whose_tenant_cannot_be_read_is_shown_to_operators_alone(client: Client, http: httpx.Client) -> None:
    make_runs(client)
    other_type(BAD_RUN)(client.redis)

    def listed(query: str) -> set[str]:
        return {name_of_run(row["run_id"]) for row in http.get(f"/runs{query}").json()["runs"]}

    assert listed("") == {*GOOD, BAD}, "without tokens everybody is an operator"
    assert listed("?tenant=") == {*GOOD}
    assert http.get(f"/runs/{RUNS[BAD]}?tenant=").status_code == 404
    assert http.post(f"/runs/{RUNS[BAD]}/cancel?tenant=").status_code == 404
    with pytest.raises(StoredDataError, match=f"cannot be read .*`submit runs cancel {RUNS[BAD]}` ends it"):
        client.of(None).find(RUNS[BAD])


@each(lambda name, kind: kind.command)
def test_it_is_a_row_of_the_command_line(kind: Kind, spoil: Spoil, client: Client) -> None:
    kind.make(client)
    spoil(client.redis)

    shown, as_json = run(kind.command), run(f"{kind.command} --json")

    assert (shown.exit_code, as_json.exit_code) == (0, 0), (shown.output, as_json.output)
    assert "it cannot be read (" in shown.stdout
    lines = [json.loads(line) for line in as_json.stdout.splitlines()]
    check(
        {kind.name_of(row): row.get("unreadable") or "" for row in (lines[0] if isinstance(lines[0], list) else lines)}
    )


# --- what is special ----------------------------------------------------------------------------------------------------


def test_a_deployment_is_applied_around_a_schedule_that_cannot_be_read(client: Client) -> None:
    declared = Definitions(
        agents=DEFINITIONS.agents, schedules={name: Schedule.model_validate(HOURLY) for name in (*GOOD, BAD, "new")}
    )
    make_schedules(client)
    for spoil in KINDS["schedules"].spoils.values():
        spoil(client.redis)
        with Client(client.redis_url, config=declared) as deploying:
            deploying.schedules.apply()
            found = {each.name: (each.unreadable, each.declared_by) for each in deploying.schedules.list()}
        assert found == dict.fromkeys([*GOOD, BAD, "new"], ("", "config"))


def test_a_change_that_cannot_be_made_stops_no_other(client: Client) -> None:
    declared = Definitions(
        agents=DEFINITIONS.agents, schedules={name: Schedule.model_validate(HOURLY) for name in (*GOOD, BAD)}
    )
    client.redis.set(f"{BAD_SCHEDULE.partition(':schedule:')[0]}:items", "a text")  # what counts it for its tenant
    with Client(client.redis_url, config=declared) as deploying:
        with pytest.raises(
            ConfigError, match=f"apply: schedule '{BAD}': it is not added, but all others are as declared"
        ):
            deploying.schedules.apply()
        assert {each.name for each in deploying.schedules.list()} >= {*GOOD}


def test_another_tenant_notices_nothing_and_names_are_quoted_for_the_shell(client: Client) -> None:
    for tenant in ("acme & co", "other"):
        play_session(client, "a b", tenant)
        client.schedules.of(tenant).create(BAD, HOURLY)
        client.batches.of(tenant).open(BAD, BatchTarget(kind="agent", name="writer"))
    for key in (
        f"{shard_key(None, shard_of(scoped('acme & co', 'a b')))}:session:{scoped('acme & co', 'a b')}:history",
        f"{shard_key(None, shard_of(scope_of('acme & co', BAD)))}:schedule:{scope_of('acme & co', BAD)}",
        f"{shard_key(None, shard_of('batches/acme & co'))}:batch:{scoped('acme & co', BAD)}",
    ):
        other_type(key)(client.redis)

    def rows(tenant: str) -> list[str]:
        (session,), (schedule,), (batch,) = (
            client.sessions.of(tenant).list(), client.schedules.of(tenant).list(), client.batches.of(tenant).newest(),
        )  # fmt: skip
        return [session.unreadable, schedule.unreadable, batch.unreadable]

    assert rows("other") == ["", "", ""]
    found = [why.partition("`")[2].partition("`")[0] for why in rows("acme & co")]
    assert found == [
        "submit sessions clear 'a b' --tenant 'acme & co'",
        f"submit schedules delete {BAD} --tenant 'acme & co'",
        f"submit batch cancel {BAD} --tenant 'acme & co'",
    ]
    for words in found:
        assert CliRunner().invoke(submit, shlex.split(words)[1:]).exit_code == 0
    assert [
        client.sessions.of("acme & co").list(),
        client.schedules.of("acme & co").list(),
        [*client.batches.of("acme & co").newest()],
    ] == [[], [], []]
    assert rows("other") == ["", "", ""]


def test_a_run_that_cannot_be_ended_is_deleted_counts_no_more_and_the_next_of_its_session_starts(
    client: Client,
) -> None:
    session = RunSession(scoped("acme", "desk"), 3600.0, 100, 10)
    shard = shard_of(session.name)
    first, second = (
        Play(client.ledger, id_in_shard(shard, name), text="hello", session=session, labels={"tenant": "acme"})
        for name in ("ax", "bx")
    )
    first.plan(work("a"))
    client.redis.hset(f"{first.shard}:run:{first.run_id}", "retention_ms", "long")

    assert client.ledger.runs.cancel(first.run_id) == "cancelled"

    assert [*client.redis.scan_iter(f"{first.shard}:run:{first.run_id}*")] == []
    assert client.sessions.of("acme").waiting("desk") == [second.run_id]
    client.redis.zadd(f"{first.shard}:ready", {f"{second.run_id}|@start": 1.0}, xx=True)
    assert {step.run_id for step in second.sweep().overdue} == {second.run_id}
    assert client.redis.hget(f"{first.shard}:tenants", "acme") == "1"
    client.ledger.runs.cancel(second.run_id)
    client.redis.zadd(f"{first.shard}:finished", {second.run_id: 1.0})
    second.sweep()
    assert client.redis.hget(f"{first.shard}:tenants", "acme") is None
    assert [client.redis.hget(key, "runs") for key in client.redis.scan_iter("*:definitions:*")] == ["0"]


def test_a_batch_that_cannot_be_read_takes_no_rows(client: Client) -> None:
    make_batches(client)
    field(BAD_BATCH, "labels", "no JSON")(client.redis)

    acts: list[Callable[[str], object]] = [
        client.batches.find, client.batches.resume, lambda name: client.batches.open(name, BatchTarget(kind="agent", name="writer")),
    ]  # fmt: skip
    for act in acts:
        with pytest.raises(
            ConfigError, match=f"batch '{BAD}': it cannot be read .* `submit batch cancel {BAD}` deletes it"
        ):
            act(BAD)


def test_nobody_may_answer_a_step_that_cannot_be_read(client: Client, http: httpx.Client) -> None:
    make_waits(client)
    field(f"{BAD_RUN}:steps", "a", '{"kind":"wait","params":{"wait":{"who":1}}}')(client.redis)

    (item,) = (each for each in http.get("/inbox").json()["items"] if each["unreadable"])
    assert "it cannot be read" in item["refused"]
    with pytest.raises(StoredDataError, match=r"the options of the wait cannot be read .* cancel its run"):
        client.answer(item["id"], True)
    assert client.answer(f"{RUNS[GOOD[0]]}/a", True).outcome == "taken"


def test_the_outcome_of_a_row_that_cannot_be_read_is_a_failure_with_unknown_cost(client: Client) -> None:
    for run_id in RUNS.values():
        play = Play(client.ledger, run_id)
        play.plan(work("a"), terminals=("a",))
        play.do("a", "answer")
    field(BAD_RUN, "terminals", "no JSON")(client.redis)

    ended, _ = outcomes.ended(client.ledger, [*RUNS.values()])

    assert [ended[RUNS[name]].state for name in GOOD] == ["succeeded"] * 3
    bad = ended[RUNS[BAD]]
    assert (bad.state, bad.is_priced, bad.error and bad.error.code) == ("failed", False, "unreadable")


def test_entries_of_a_conversation_are_read_around_one_that_cannot_be(client: Client) -> None:
    make_sessions(client)
    client.redis.lset(f"{BAD_SESSION}:history", 0, "no JSON")

    first, second = client.sessions.history(BAD)

    assert (first.role, second.content) == ("system_error", "answer")
    assert "it cannot be read" in first.content


def test_a_memory_that_cannot_be_read_costs_no_other_and_can_be_deleted(client: Client, http: httpx.Client) -> None:
    for name in (*GOOD, BAD):
        client.memory.store_memory(name, name)
    values = f"{memory_key(client.redis, '')}:values:default"
    client.redis.hset(values, BAD, str(client.redis.hget(values, BAD)).replace('"bad"', "no JSON"))

    assert client.memory.list_memories() == sorted([*GOOD, BAD])
    assert [client.memory.retrieve_memory(name) for name in GOOD] == [*GOOD]
    reply = http.get(f"/memory/default/{BAD}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "unreadable")
    assert "delete it, or store another value" in reply.json()["error"]["message"]
    assert http.delete(f"/memory/default/{BAD}").json() == {"removed": 1}
    assert client.memory.list_memories() == sorted(GOOD)


def test_a_namespace_of_another_type_can_be_cleared(client: Client) -> None:
    client.memory.store_memory("a", 1, "good")
    client.memory.store_memory("a", 1, BAD)
    other_type(f"{memory_key(client.redis, '')}:values:{BAD}")(client.redis)

    assert client.memory.namespaces() == [BAD, "good"]
    assert run(f"memory clear --namespace {BAD}").exit_code == 0
    assert client.memory.namespaces() == ["good"]
    assert client.memory.retrieve_memory("a", "good") == 1


def test_pauses_and_queues_of_limits_are_read_around_those_that_cannot_be(client: Client) -> None:
    limits = f"{key_of(client.redis, LIMITS_KEY)}"
    until = int(client.redis.time()[0] * 1000) + 60_000
    client.redis.hset(f"{limits}:pauses", mapping={"good": until, BAD: "noon", "late": YEAR_9999})
    client.redis.hset(f"{limits}:pause_notes", mapping={"good": "no JSON"})

    assert [each.model for each in paused_models(client.redis)] == ["good"]
    assert run("models list --json").exit_code == 0
