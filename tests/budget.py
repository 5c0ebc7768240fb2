"""Tells what a run of tests spent its time on: the dearest tests, and those of over five seconds that do not say why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import pytest

SHOWN = 10
LONG_S = 5.0
MARK = "slow"
"""A mark with the reason why a test takes longer than that."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the reason reach whoever shows the reports."""
    report = yield
    if call.when == "setup" and (mark := item.get_closest_marker(MARK)):
        report.user_properties.append((MARK, str(mark.args[0])))
    return report


class Budget:
    """Adds up what each test took."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._own: Counter[str] = Counter()
        """Test → seconds without its fixtures, whose start and end fall to the first and last of the tests that share them."""
        self._reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the start and the end of a test too."""
        self._seconds[report.nodeid] += report.duration  # type: ignore[assignment]
        if report.when == "call":
            self._own[report.nodeid] += report.duration  # type: ignore[assignment]
        if MARK in (properties := dict(report.user_properties)):
            self._reasons[report.nodeid] = str(properties[MARK])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the dearest."""
        terminalreporter.write_sep("=", "dearest tests")
        dearest = self._seconds.most_common(SHOWN)
        unexplained = [
            (test, self._seconds[test]) for test, own in self._own.items() if own > LONG_S and test not in self._reasons
        ]
        for test, seconds in dict.fromkeys([*dearest, *unexplained]):
            own = self._own[test]
            why = self._reasons.get(
                test, f"over {LONG_S:g} s, and does not say why: @pytest.mark.slow(...)" if own > LONG_S else ""
            )
            fixtures = f"  {seconds - own:.1f} s in fixtures" if seconds - own > LONG_S else ""
            terminalreporter.write_line(f"{seconds:6.1f} s  {test}" + (f"  ({why})" if why else "") + fixtures)


def pytest_configure(config: pytest.Config) -> None:
    """Add up in the process that has all reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Budget())
