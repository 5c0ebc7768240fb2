"""Actors and entries of the audit log, for surfaces, which import no storage."""

from cantata.features.audit.actors import ANONYMOUS, Actor, act_as, acting_as, local_actor
from cantata.features.audit.audit_store import MAX_PAGE, AuditEntry, AuditPage

__all__ = ["ANONYMOUS", "MAX_PAGE", "Actor", "AuditEntry", "AuditPage", "act_as", "acting_as", "local_actor"]
