"""Rights of a gateway token: its scopes, the teams, agents and chains it may name, and whether it may approve its own runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from cantata.gateway.http_errors import RequestRejected
from cantata.models.definitions import Definitions
from cantata.models.graph import Spec
from cantata.models.values import Value
from cantata.models.wire import ChainRequest, TurnRequest
from cantata.planning.turns.turn_plan import target_of

Scope = Literal["chat", "submit", "signal", "read", "admin"]

DEFAULT_SCOPES: tuple[Scope, ...] = ("chat", "read")
"""The scopes of a token that names none."""

STARTS: Mapping[str, Scope] = {"turn": "chat", "chain": "submit"}
"""Kind of run → the scope that starts one, and that cancels, retries and forks it."""

REQUESTED_BY = "requested_by"
"""The label of a run that says which token asked for it, by its name."""

_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "team": ("teams",), "agent": ("agents", "teams"), "workflow": ("chains",), "chain": ("chains",), "diskurs": ("agents",)
}  # fmt: skip
"""What is named → the limits that may hold its name."""
_CONTROL = ("branch", "map", "wait")  # nodes that call nothing

_REMEDY = "change it where the gateway's tokens are kept, and restart the gateway"


class Grant(Value):
    """Rights of one token. A token with any of `teams`, `agents` and `chains` may name what these hold, and nothing else."""

    tenant: str = Field(max_length=200, description="whose runs, sessions and memory it sees; '' is the operator's")
    name: str = Field(
        default="", max_length=100, description="its name, recorded with each run that it asks for; made of its digest if absent"
    )
    scopes: list[Scope] = Field(
        default_factory=lambda: list(DEFAULT_SCOPES), description="chat, submit, signal, read, admin; chat and read if absent"
    )
    teams: list[str] | None = Field(default=None, description="the teams that it may name")
    agents: list[str] | None = Field(default=None, description="the agents that it may name")
    chains: list[str] | None = Field(default=None, description="the chains that it may name")
    approve_own: bool = Field(default=False, description="whether it may approve the `wait` steps of runs that it asked for itself")

    def require(self, scope: Scope) -> None:
        """Raise RequestRejected if it lacks a scope."""
        if reason := self.lacks(scope):
            raise RequestRejected(403, reason, code="missing_scope")

    def lacks(self, scope: Scope) -> str:
        """Return why something that needs a scope is refused; nothing if it is not. `admin` includes all others."""
        if scope in self.scopes or "admin" in self.scopes:
            return ""
        return f"token {self.name!r} lacks the scope {scope!r}; add it to the token's 'scopes': {_REMEDY}"

    def require_fleet(self) -> None:
        """Raise RequestRejected if it may not see what is of all tenants together."""
        self.require("admin")
        if self.tenant:
            message = (
                f"token {self.name!r} is of tenant {self.tenant!r}, and this tells of all tenants together; "
                "use a token of the tenant '' with the scope 'admin', or the metrics port"
            )
            raise RequestRejected(403, message, code="missing_scope")

    def check_turn(self, turn: TurnRequest, definitions: Definitions) -> None:
        """Raise RequestRejected if a turn would be answered by something that this token may not name."""
        found = target_of(turn, definitions)
        if found is not None:
            self._check(*found)

    def check_chain(self, request: ChainRequest) -> None:
        """Raise RequestRejected if a chain request names something that this token may not name. A limited token calls no tool by itself."""
        for node in request.nodes:
            if node.kind not in _CONTROL:
                self._check(node.kind, node.name)

    def _check(self, kind: str, name: str) -> None:
        limits = {"teams": self.teams, "agents": self.agents, "chains": self.chains}
        if all(each is None for each in limits.values()):
            return
        sections = _SECTIONS.get(kind, ())
        if any(name in (limits[section] or ()) for section in sections):
            return
        remedy = f"add it to the token's {sections[0]!r}: {_REMEDY}" if sections else "it is limited to named teams, agents and chains"
        raise RequestRejected(403, f"token {self.name!r} may not use the {kind} {name!r}; {remedy}", code="not_granted")

    def own_approval(self, labels: Mapping[str, str], step: Spec | None) -> str:
        """Return why this token may not give a step its value, if it asked for the run itself; nothing if it may.

        A question that a model asks by a tool is for whoever asked for the run; only approvals need somebody else.
        """
        if self.approve_own or labels.get(REQUESTED_BY) != self.name or (step is not None and is_question(step.kind, step.work)):
            return ""
        return (
            f"token {self.name!r} asked for this run, so another must approve it; "
            f"or set 'approve_own: true' for the token: {_REMEDY}"
        )  # fmt: skip

    def labels(self) -> dict[str, str]:
        """Return the labels of a run that this token asks for."""
        return {name: value for name, value in (("tenant", self.tenant), (REQUESTED_BY, self.name)) if value}


def is_question(kind: str, work: str) -> bool:
    """Return whether a waiting step is a call of a tool that asks people, by a model, and no `wait` node."""
    return kind == "wait" and work.startswith("tools:")


UNLIMITED = Grant(tenant="", scopes=["admin"], approve_own=True)
"""The rights of whoever asks a gateway without tokens: all, of runs without the label `tenant`."""
