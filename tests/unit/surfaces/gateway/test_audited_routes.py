"""Routes that change something are audited, or named as those that are not."""

from __future__ import annotations

from fastapi.routing import APIRoute

from cantata.surfaces.gateway.app import ROUTERS
from cantata.surfaces.gateway.audited_routes import ACTIONS, NOT_AUDITED


def test_each_route_that_changes_something_is_audited_or_named_as_one_that_is_not() -> None:
    changing = {
        route.name
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and (route.methods or set()) - {"GET", "HEAD"}
    }

    assert changing == ACTIONS.keys() | NOT_AUDITED
    assert not ACTIONS.keys() & NOT_AUDITED
