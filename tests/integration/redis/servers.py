"""Redis servers as operators run them: with passwords, replicas and Sentinels, as a cluster, behind TLS."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from cantata.operation.embedded.valkey import find_server
from tests import waiting

PATIENCE_S = 40.0
HERE = "127.0.0.1"
SLOTS = 16384
PORTS = (12_000, 30_000)
EXAMPLES = Path(__file__).parents[3] / "deploy" / "redis"
PASSWORD = "change-this-password"
OPEN = (EXAMPLES / "users.acl").read_text().replace("user default off", "user default on nopass ~* &* +@all")
"""The users of our example, and one beside them for tests."""


def free_port() -> int:
    """A port that nobody listens on now, and that the kernel gives to no connection that is made meanwhile."""
    while True:
        with socket.socket() as sock, suppress(OSError):
            port = random.randrange(*PORTS)
            sock.bind((HERE, port))
            return port


def until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Wait for a condition and answer what it gave. A server that cannot be asked yet is asked again."""

    def asked() -> Any:
        with suppress(RedisError, OSError):
            return condition()

    return waiting.until(asked, what, timeout_s)


class Server:
    """One server on loopback, which can be killed and started again."""

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str] | None = None,
        *,
        file: Path | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self.port = free_port()
        self.folder = folder / str(self.port)
        self.folder.mkdir()
        self.redis = Redis(
            HERE,
            self.port,
            username=user,
            password=password,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=10,
        )
        self._files = (
            [str(shutil.copy(file, self.folder))] if file else []
        )  # a copy: Sentinels have servers write it anew
        self._command = self._words(
            {"port": str(self.port), "bind": HERE, "dir": str(self.folder), "save": "", **(options or {})}
        )
        self.start()

    def _words(self, options: Mapping[str, str]) -> list[str]:
        told = {"appendonly": "yes", **options}
        return [
            find_server(),
            *self._files,
            *(word for name, value in told.items() for word in (f"--{name}", *value.split(" "))),
        ]

    def add(self, option: str, value: str) -> None:
        """Start it with this option too, from the next time on."""
        self._command += [f"--{option}", value]

    @property
    def place(self) -> str:
        """Host and port."""
        return f"{HERE}:{self.port}"

    def start(self) -> None:
        """Start it; it is there a moment later."""
        with (self.folder / "log").open("ab") as log:
            # With our signals: it ignores SIGXFSZ, so that a limit of file sizes acts as a full disk.
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, restore_signals=False)

    def wait(self) -> None:
        """Wait until it answers."""
        until(self.redis.ping, f"the server at {self.place}")

    def say(self, *words: object) -> Any:
        """What it answers to any command."""
        return self.redis.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py says nothing of it

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it for good."""
        self.redis.close()
        self.kill()


class Sentinel(Server):
    """One that watches a master and says where it is."""

    def __init__(self, folder: Path, text: str) -> None:
        self._text = text
        super().__init__(folder)

    def _words(self, options: Mapping[str, str]) -> list[str]:
        file = self.folder / "sentinel.conf"  # which it writes itself
        file.write_text(f"{self._text}\nport {options['port']}\nbind {HERE}\ndir {self.folder}\n")
        return [find_server(), str(file), "--sentinel"]


@contextmanager
def running(*servers: Server) -> Iterator[None]:
    """Wait for servers, and end them after the block."""
    try:
        for server in servers:
            server.wait()
        yield
    finally:
        for server in servers:
            server.close()


class Watched:
    """A master, a replica, and three Sentinels that put the one in the other's place within a second or two."""

    def __init__(self, folder: Path, users: str) -> None:
        file = folder / "users.acl"
        file.write_text(users)
        options = {"aclfile": str(file), "masteruser": "replica", "masterauth": PASSWORD}
        self.servers = [Server(folder, options, file=EXAMPLES / "redis.conf")]
        replica = {**options, "replicaof": f"{HERE} {self.servers[0].port}"}
        self.servers.append(Server(folder, replica, file=EXAMPLES / "redis.conf"))
        text = (EXAMPLES / "sentinel.conf").read_text()
        for shown, meant in (
            ("192.0.2.1 6379", f"{HERE} {self.servers[0].port}"),
            ("port 26379", ""),
            ("milliseconds main 3000", "milliseconds main 2000"),
            ("timeout main 30000", "timeout main 3000"),
            ("# sentinel auth", "sentinel auth"),
        ):
            assert shown in text
            text = text.replace(shown, meant)
        self.sentinels = [Sentinel(folder, text) for _ in range(3)]
        self.url = f"redis+sentinel://cantata:{PASSWORD}@{','.join(each.place for each in self.sentinels)}/main"

    def form(self) -> None:
        """Wait until the replica has what the master has, and each Sentinel knows all; they look every 200 ms instead of 10 s."""
        for sentinel in self.sentinels:
            sentinel.say("SENTINEL DEBUG info-period 200 publish-period 200 ask-period 200")
        until(lambda: self.servers[1].redis.info("replication")["master_link_status"] == "up", "the replica")
        for sentinel in self.sentinels:
            until(partial(self._knows_all, sentinel), "a Sentinel")

    @property
    def master(self) -> Server:
        """The one that takes writes, as the first Sentinel says."""
        _host, port = self.sentinels[0].say("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")
        return next(server for server in self.servers if server.port == port)

    @property
    def replica(self) -> Server:
        """The other one, which may be dead."""
        return next(server for server in self.servers if server is not self.master)

    @property
    def all(self) -> list[Server]:
        """Masters, replicas and Sentinels."""
        return [*self.servers, *self.sentinels]

    @staticmethod
    def _knows_all(sentinel: Server) -> bool:
        state = sentinel.say("SENTINEL MASTER", "main")
        return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] == 1)


class Clustered:
    """Three masters without replicas, as one cluster."""

    def __init__(self, folder: Path, users: str) -> None:
        file = folder / "users.acl"
        file.write_text(users)
        self.nodes = [Server(folder, {**self._options(), "aclfile": str(file)}) for _ in range(3)]
        self.url = f"redis+cluster://{','.join(node.place for node in self.nodes)}"

    @staticmethod
    def _options() -> dict[str, str]:
        return {
            "cluster-enabled": "yes",
            "cluster-node-timeout": "2000",
            "cluster-port": str(free_port()),
            "cluster-config-file": "nodes",
        }

    def form(self) -> None:
        """Share the slots out and have the nodes meet."""
        share = SLOTS // len(self.nodes) + 1
        for number, node in enumerate(self.nodes):
            node.say("CLUSTER ADDSLOTSRANGE", number * share, min(SLOTS, (number + 1) * share) - 1)
            node.say("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            bus = node.redis.config_get("cluster-port")["cluster-port"]
            self.nodes[0].say("CLUSTER MEET", HERE, node.port, bus)
        self.wait_ok()

    def wait_ok(self) -> None:
        """Wait until each node has met all, and all slots are served."""
        for node in self.nodes:
            until(partial(self._is_ok, node), f"the cluster at {node.place}")

    def move_slot(self, slot: int) -> tuple[Server, Server]:
        """Move a slot with all its keys from the node that has it to another, as operators do; answers both."""
        source = self.nodes[slot // (SLOTS // len(self.nodes) + 1)]
        target = self.nodes[(self.nodes.index(source) + 1) % len(self.nodes)]
        names = [node.say("CLUSTER MYID") for node in (source, target)]
        target.say("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
        source.say("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
        while keys := source.say("CLUSTER GETKEYSINSLOT", slot, 100):
            source.say("MIGRATE", HERE, target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, *self.nodes):
            node.say("CLUSTER SETSLOT", slot, "NODE", names[1])
        return source, target

    def _is_ok(self, node: Server) -> bool:
        info = node.say("CLUSTER INFO")
        return bool(info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(self.nodes))
