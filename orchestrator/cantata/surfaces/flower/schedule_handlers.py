"""Handlers of the API of the schedule pages: list, show, pause, resume and trigger, of all tenants."""

from __future__ import annotations

from cantata.client.records import Schedules
from cantata.surfaces.flower.page_handlers import ApiHandler


class _ScheduleHandler(ApiHandler):
    def _schedules(self) -> Schedules:
        return self.service.client.of(self.get_query_argument("tenant", "", strip=False)).schedules


class ScheduleListHandler(_ScheduleHandler):
    """GET schedules."""

    async def get(self) -> None:
        found = await self.service.call(self._schedules().list_all)
        self.answer({"schedules": [each.model_dump(mode="json") for each in found]})


class ScheduleHandler(_ScheduleHandler):
    """GET schedules/NAME."""

    async def get(self, name: str) -> None:
        self.answer((await self.service.call(self._schedules().get, name)).model_dump_json())


class ScheduleActionHandler(_ScheduleHandler):
    """POST schedules/NAME/pause, resume or trigger."""

    async def post(self, name: str, action: str) -> None:
        found = self._schedules()
        if action == "trigger":
            outcome, run_id = await self.service.call(found.trigger, name)
            self.answer({"outcome": outcome, "run_id": run_id})
        else:
            act = found.pause if action == "pause" else found.resume
            self.answer((await self.service.call(act, name)).model_dump_json())
