"""The files of deploy/redis in a real server: what they set, what its users may do, and that all ways to deploy it agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from tests.integration.redis.servers import EXAMPLES, HERE, PASSWORD, Server, running

TOP = EXAMPLES.parents[1]
BACKUP = EXAMPLES / "backup.sh"
SAME = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "save")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with redis.conf as it is, its line for the users counted in, and a user for the test."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "users.acl").write_text((EXAMPLES / "users.acl").read_text() + "user admin on >admin ~* &* +@all\n")
    conf = folder / "redis.conf"
    shown = "# aclfile users.acl"
    text = (EXAMPLES / "redis.conf").read_text()
    assert shown in text
    conf.write_text(text.replace(shown, f"aclfile {folder / 'users.acl'}"))
    server = _AsWritten(folder, file=conf, user="admin", password="admin")
    with running(server):
        yield server


class _AsWritten(Server):
    """A server whose settings are those of its file, but for port and folder."""

    def _words(self, options: object) -> list[str]:
        program, file, *_ = super()._words({})
        return [program, file, "--port", str(self.port), "--bind", HERE, "--dir", str(self.folder)]


def as_user(server: Server, name: str) -> Redis:
    return Redis(HERE, server.port, username=name, password=PASSWORD, decode_responses=True)


def test_the_file_bounds_memory_evicts_nothing_and_writes_the_aof_alone(server: Server) -> None:
    found = {name: server.redis.config_get(name)[name] for name in SAME}

    assert found == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory": str(1024**3),
        "maxmemory-policy": "noeviction",
        "save": "",
    }


def directives(text: str) -> dict[str, str]:
    """The settings of SAME in a file, or in the command of a container."""
    found = re.findall(rf"(?:^|--|\n)\s*({'|'.join(SAME)})[ \t]+(\"\"|''|[$\w-]+)", text)
    return {name: value.strip("\"'") for name, value in found}


def test_compose_and_kubernetes_set_what_the_file_sets() -> None:
    told = directives((EXAMPLES / "redis.conf").read_text())
    assert told.keys() == {*SAME}
    compose = yaml.safe_load((TOP / "docker-compose.yml").read_text())["services"]["redis"]
    of_compose = directives(" ".join(compose["command"]).replace("$$MAXMEMORY", "MAXMEMORY"))
    (default,) = re.findall(r":-(\w+)\}", compose["environment"]["MAXMEMORY"])
    component = TOP / "deploy" / "kubernetes" / "components" / "redis" / "redis.yaml"
    (stateful,) = (each for each in yaml.safe_load_all(component.read_text()) if each["kind"] == "StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]

    assert {**of_compose, "maxmemory": default} == told
    assert directives(" ".join(container["args"])) == told
    assert "deploy/redis/redis.conf" in (TOP / "docs" / "deploy.md").read_text(), "with systemd, Redis is the machine's"


def test_the_operator_may_look_at_the_aof_and_nothing_else(server: Server) -> None:
    with as_user(server, "operator") as operator:
        assert operator.ping()
        state = operator.info("persistence")
        assert (state["aof_enabled"], state["aof_last_write_status"]) == (1, "ok")
        commands = set(server.say("COMMAND LIST"))
        with_parts = {name.partition("|")[0] for name in commands if "|" in name}
        permitted = {name for name in commands - with_parts if may(server, "operator", name)}
        assert len(commands) > 200
        assert permitted - OF_THE_CONNECTION == {"auth", "hello", "ping", "info"}


OF_THE_CONNECTION = {"quit", "reset"}
"""Commands that Redis refuses nobody."""

REFUSED = (
    "FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "GET cantata:x", "HGETALL cantata:run", "XRANGE cantata:log - +", "SET cantata:x 1",
    "DEL cantata:x", "EVAL 'return1' 0", "CONFIG GET *", "CONFIG SET maxmemory 1", "CONFIG REWRITE", "ACL LIST", "ACL WHOAMI",
    "CLIENT LIST", "MONITOR", "SHUTDOWN", "BGSAVE", "REPLICAOF NO ONE", "PSYNC ? -1", "SYNC", "SUBSCRIBE x",
    "PUBLISH cantata:events x", "MEMORY USAGE cantata:x", "OBJECT ENCODING cantata:x", "DUMP cantata:x", "SWAPDB 0 1",
)  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_the_operator_neither_reads_runs_nor_changes_anything(server: Server, words: str) -> None:
    with as_user(server, "operator") as operator, pytest.raises(NoPermissionError):
        operator.execute_command(*words.split())


def may(server: Server, user: str, command: str) -> bool:
    """Whether the server lets a user call a command, with any arguments."""
    for count in range(8):  # it says nothing of rights as long as the number of arguments is wrong
        with suppress(ResponseError):
            return "no permissions to run" not in str(
                server.say("ACL", "DRYRUN", user, *command.split("|"), *["0"] * count)
            )
    raise AssertionError(f"{command} takes more arguments")


CP = """#!/bin/sh
# Links the files of the AOF, has Redis write it anew, and links the manifest then: the first time only.
if [ "$1" = -al ] && mkdir "{once}" 2>/dev/null; then
    mkdir "$3"
    ln "$2"/*.aof "$2"/*.rdb "$3"
    cp "$2"/*.manifest "{once}/before"
    redis-cli -p {port} --user admin --pass admin --no-auth-warning BGREWRITEAOF >&2
    while cmp -s "$2"/*.manifest "{once}/before" || ls "$2" | grep -q temp; do sleep 0.05; done
    ln "$2"/*.manifest "$3"
    exit
fi
exec {cp} "$@"
"""


def test_the_script_copies_what_belongs_together_although_the_aof_is_rewritten_between_two_links(
    server: Server, tmp_path: Path
) -> None:
    cp = shutil.which("cp")
    (tmp_path / "cp").write_text(CP.format(once=tmp_path / "once", port=server.port, cp=cp))
    (tmp_path / "cp").chmod(0o755)
    count = server.redis.incr("count")
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    copied = subprocess.run(
        [BACKUP, server.folder, tmp_path / "copy"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert copied.returncode == 0, copied.stderr
    assert (tmp_path / "once").exists()
    assert not (server.folder / "backup.links").exists()
    files = {file.name for file in (tmp_path / "copy" / "appendonlydir").iterdir()}
    (manifest,) = (tmp_path / "copy" / "appendonlydir").glob("*.manifest")
    assert files == {manifest.name, *re.findall(r"^file (\S+) ", manifest.read_text(), re.MULTILINE)}
    restored = Server(tmp_path / "copy", {})
    with running(restored):
        restored.kill()
        (restored.folder / "appendonlydir").rename(restored.folder / "empty")
        (tmp_path / "copy" / "appendonlydir").rename(restored.folder / "appendonlydir")
        restored.start()
        restored.wait()
        assert restored.redis.get("count") == str(count)


def test_the_script_says_what_is_wrong_and_overwrites_no_copy(server: Server, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for words, said in (
        ([server.folder], "usage: backup.sh FOLDER TARGET"),
        ([tmp_path, tmp_path / "new"], "is appendonly yes set"),
        ([server.folder, tmp_path / "there"], "exists already"),
    ):
        refused = subprocess.run([BACKUP, *words], capture_output=True, text=True, timeout=50, check=False)
        assert refused.returncode in (1, 2)
        assert said in refused.stderr
