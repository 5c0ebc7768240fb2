"""Rights of a gateway token: its scopes, the teams, agents and chains it may use, and whether it may approve its own runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, PrivateAttr

from cantata.flows.definitions import Definitions
from cantata.flows.graph import Spec
from cantata.flows.schedules import Schedule
from cantata.flows.turns.turn_plan import target_of
from cantata.flows.waits import InboxItem
from cantata.flows.wire import ChainRequest, TurnRequest
from cantata.surfaces.http.rejections import RequestRejected
from cantata.values import Value

Scope = Literal["chat", "submit", "signal", "read", "operator", "admin"]

DEFAULT_SCOPES: tuple[Scope, ...] = ("chat", "read")
"""Scopes of a token without any."""

STARTS: Mapping[str, Scope] = {"turn": "chat", "chain": "submit", "webhook": "submit", "batch": "chat"}
"""Kind of run → the scope to start, cancel, retry and fork it."""

_INCLUDED: Mapping[str, frozenset[Scope]] = {
    "operator": frozenset({"chat", "submit", "signal", "read"}),
    "admin": frozenset({"chat", "submit", "signal", "read"}),
}
"""Scope → the others that it includes."""

REQUESTED_BY = "requested_by"
"""Label of a run: the name of the token that submitted it."""

_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "team": ("teams",), "agent": ("agents", "teams"), "workflow": ("chains",), "chain": ("chains",), "extension": ("agents",)
}  # fmt: skip
"""Kind of a name → the fields of a grant that may list it."""
_CONTROL = ("branch", "map", "wait")  # nodes without a tool or agent

_REMEDY = "change it where the gateway's tokens are kept"


class Grant(Value):
    """Rights of one token. A token with any of `teams`, `agents` and `chains` may use only what these list."""

    tenant: str = Field(max_length=200, description="the tenant of its runs, sessions and memory; '' is the operator's")
    name: str = Field(
        default="",
        max_length=100,
        description="its name, recorded with each run that it submits; made of its digest if absent",
    )
    scopes: list[Scope] = Field(
        default_factory=lambda: list(DEFAULT_SCOPES),
        description="chat, submit, signal, read, operator, admin; chat and read if absent",
    )
    teams: list[str] | None = Field(default=None, description="the teams that it may use")
    agents: list[str] | None = Field(default=None, description="the agents that it may use")
    chains: list[str] | None = Field(
        default=None, description="the chains, and the workflows in Python, that it may use"
    )
    groups: list[str] = Field(
        default_factory=list, description="groups for which it answers, as `who` of a wait names them"
    )
    approve_own: bool = Field(
        default=False, description="whether it may approve the `wait` steps of runs that it submitted itself"
    )

    _own_tenant: str | None = PrivateAttr(default=None)  # the token's, if an operator has chosen another

    @property
    def is_operator(self) -> bool:
        """True if it sees and acts on the data of all tenants: with the scope `operator`, or `admin` without a tenant."""
        own = self.tenant if self._own_tenant is None else self._own_tenant
        return "operator" in self.scopes or ("admin" in self.scopes and not own)

    @property
    def reads(self) -> str | None:
        """The tenant whose runs it sees; None for all tenants."""
        return None if self.is_operator and self._own_tenant is None else self.tenant

    def for_tenant(self, tenant: str | None) -> Grant:
        """Return the rights over the tenant that a request names; without one, all. Only an operator may name another: RequestRejected."""
        if tenant is None or (tenant == self.tenant and not self.is_operator):
            return self
        if not self.is_operator:
            message = (
                f"token {self.name!r} is of tenant {self.tenant!r} and may not name another; "
                f"an operator may: add the scope 'operator' to the token's 'scopes': {_REMEDY}"
            )
            raise RequestRejected(403, message, code="missing_scope")
        chosen = self.model_copy(update={"tenant": tenant})
        chosen._own_tenant = self.tenant
        return chosen

    def require(self, scope: Scope) -> None:
        """Raise RequestRejected if it lacks a scope."""
        if reason := self.lacks(scope):
            raise RequestRejected(403, reason, code="missing_scope")

    def lacks(self, scope: Scope) -> str:
        """Return the reason why the token lacks a scope; empty if it has it, or one that includes it."""
        if any(scope == own or scope in _INCLUDED.get(own, ()) for own in self.scopes):
            return ""
        return f"token {self.name!r} lacks the scope {scope!r}; add it to the token's 'scopes': {_REMEDY}"

    def require_fleet(self) -> None:
        """Raise RequestRejected if it may not see data of all tenants."""
        if not self.is_operator:
            message = (
                f"this has data of all tenants, and token {self.name!r} of tenant {self.tenant!r} is no operator's; use a token "
                "with the scope 'operator', one of the tenant '' with the scope 'admin', or the metrics port"
            )
            raise RequestRejected(403, message, code="missing_scope")

    def check_turn(self, turn: TurnRequest, definitions: Definitions) -> None:
        """Raise RequestRejected if a turn would be answered by a team, agent or chain that this token may not use."""
        found = target_of(turn, definitions)
        if found is not None:
            self.check_name(*found)

    def check_chain(self, request: ChainRequest) -> None:
        """Raise RequestRejected if a chain request has a node that this token may not use. A limited token may use no tool nodes."""
        for node in request.nodes:
            if node.kind not in _CONTROL:
                self.check_name(node.kind, node.name)

    def check_schedule(self, schedule: Schedule | None, definitions: Definitions) -> None:
        """Raise RequestRejected if it may not start the runs of a schedule; of one that cannot be read (None), for each limited token."""
        if schedule is None:
            self.require_unlimited("this schedule cannot be read")
        elif schedule.turn:
            self.require("chat")
            self.check_turn(schedule.turn, definitions)
        elif isinstance(schedule.chain, ChainRequest):
            self.check_chain(schedule.chain)
        else:
            kind = "workflow" if schedule.workflow is not None else "chain"
            self.check_name(kind, str(schedule.workflow or schedule.chain))

    def require_unlimited(self, why: str) -> None:
        """Raise RequestRejected unless the token may use every team, agent and chain; `why` says why all count."""
        self.require("chat")
        self.require("submit")
        if self._is_limited:
            message = (
                f"{why}, and token {self.name!r} is limited to named teams, agents and chains; use a token that is not"
            )
            raise RequestRejected(403, message, code="not_granted")

    @property
    def _is_limited(self) -> bool:
        return any(each is not None for each in (self.teams, self.agents, self.chains))

    def check_name(self, kind: str, name: str) -> None:
        """Raise RequestRejected if it may not use the team, agent, chain, workflow or tool of this name."""
        if not self._is_limited:
            return
        limits = {"teams": self.teams, "agents": self.agents, "chains": self.chains}
        sections = _SECTIONS.get(kind, ())
        if any(name in (limits[section] or ()) for section in sections):
            return
        remedy = (
            f"add it to the token's {sections[0]!r}: {_REMEDY}"
            if sections
            else "it is limited to named teams, agents and chains"
        )
        raise RequestRejected(403, f"token {self.name!r} may not use the {kind} {name!r}; {remedy}", code="not_granted")

    @property
    def identities(self) -> list[str] | None:
        """Return its name, groups and scopes, one of which the `who` of a wait must list; None for `admin`, which may answer all."""
        return None if "admin" in self.scopes else [self.name, *self.groups, *self.scopes]

    def refusal_of(self, item: InboxItem) -> str:
        """Return the reason why this token may not answer an item of the inbox; empty if it may."""
        if item.unreadable:
            return "it is not known who may answer this, since it cannot be read"
        if reason := self.lacks("signal") or self.own_approval(item.labels, Spec(kind=item.kind, work=item.work)):
            return reason
        if self.identities is None or item.who is None or not {*self.identities}.isdisjoint(item.who):
            return ""
        return f"this is for {', '.join(item.who)} to answer"

    def own_approval(self, labels: Mapping[str, str], step: Spec | None) -> str:
        """Return the reason why this token may not signal a step of a run that it submitted itself; empty if it may.

        A question that a model asks by a tool is for the submitter of the run; only approvals need another token.
        """
        if (
            self.approve_own
            or labels.get(REQUESTED_BY) != self.name
            or (step is not None and is_question(step.kind, step.work))
        ):
            return ""
        return (
            f"token {self.name!r} submitted this run, so another token must approve it; "
            f"or set 'approve_own: true' for the token: {_REMEDY}"
        )

    def labels(self) -> dict[str, str]:
        """Return the labels of a run that this token submits."""
        return {name: value for name, value in (("tenant", self.tenant), (REQUESTED_BY, self.name)) if value}


def is_question(kind: str, work: str) -> bool:
    """Return whether a waiting step is a model's call of a tool that asks people, and not a `wait` node."""
    return kind == "wait" and work.startswith("tools:")


UNLIMITED = Grant(tenant="", scopes=["admin"], approve_own=True)
"""Rights of clients of a gateway without tokens: all, for all tenants. What they submit has no tenant."""
