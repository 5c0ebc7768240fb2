"""The dashboard, the alert rules and the page say what the processes really show."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from cantata.operation.metrics.families import FAMILIES, Family
from tests.acceptance import write_metrics

TOP = Path(__file__).parents[3]
MONITORING = TOP / "deploy" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana" / "cantata.json").read_text("utf-8"))
PROMETHEUS: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yml").read_text("utf-8"))
GROUPS: list[dict[str, Any]] = yaml.safe_load(write_metrics.ALERTS.read_text("utf-8"))["groups"]
RULES = write_metrics.rules()
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

SCRAPED = {"job", "instance"}  # Prometheus adds these to every series
OF_OTHERS = {
    "up": Family("up", "gauge", (), "of Prometheus", "both"),
    "process_resident_memory_bytes": Family("process_resident_memory_bytes", "gauge", (), "of the library", "both"),
}
RATES = {"rate", "increase"}
DURATION = re.compile(r"\d+(s|m|h)")


def series() -> dict[str, Family]:
    """The names that can be asked for: of a histogram three."""
    found = dict(OF_OTHERS)
    for family in FAMILIES:
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        found |= {family.name + suffix: family for suffix in suffixes}
    return found


@dataclass
class Use:
    """A series that a query names, and what is done with it, from the outside in."""

    name: str
    matched: set[str]
    calls: list[str] = field(default_factory=list)
    groups: list[tuple[str, set[str]]] = field(default_factory=list)
    """The aggregations around it: what they do, and the labels they keep."""


def uses(expression: Any, calls: tuple[str, ...] = (), groups: tuple[tuple[str, set[str]], ...] = ()) -> Iterator[Use]:
    """Every series in a query."""
    kind = type(expression).__name__
    if kind == "MatrixSelector":
        yield from uses(expression.vector_selector, calls, groups)
    elif kind == "VectorSelector":
        yield Use(expression.name, {each.name for each in expression.matchers.matchers}, list(calls), list(groups))
    elif kind == "Call":
        for each in expression.args:
            yield from uses(each, (*calls, expression.func.name), groups)
    elif kind == "AggregateExpr":
        kept = set(expression.modifier.labels) if expression.modifier else set[str]()
        yield from uses(expression.expr, calls, (*groups, (str(expression.op), kept)))
    elif kind == "BinaryExpr":
        yield from uses(expression.lhs, calls, groups)
        yield from uses(expression.rhs, calls, groups)
    elif kind == "ParenExpr":
        yield from uses(expression.expr, calls, groups)
    else:
        assert kind in ("NumberLiteral", "StringLiteral"), f"this test does not know {kind}"


def filled(query: str) -> str:
    """A query of the dashboard as Grafana sends it."""
    return query.replace("$__rate_interval", "1m").replace("$queue", ".*").replace("$model", ".*")


def queries() -> list[Any]:
    asked = [
        (f"{panel['title']} {target['refId']}", filled(target["expr"]))
        for panel in PANELS
        for target in panel["targets"]
    ]
    asked += [(rule["alert"], rule["expr"]) for rule in RULES]
    return [pytest.param(query, id=name) for name, query in asked]


@pytest.mark.parametrize("query", queries())
def test_queries_ask_for_what_is_shown_in_a_way_that_fits(query: str) -> None:
    known = series()

    found = list(uses(promql_parser.parse(query)))

    assert found
    for use in found:
        assert use.name in known, use.name
        family = known[use.name]
        labels = {*family.labels, *SCRAPED, *({"le"} if use.name.endswith("_bucket") else ())}
        assert use.matched <= labels, f"{use.name} has no such label"
        assert all(kept <= labels for _, kept in use.groups), f"{use.name} has no such label"
        assert bool(RATES & set(use.calls)) == (family.kind != "gauge"), f"{use.name} is a {family.kind}"
        assert ("histogram_quantile" in use.calls) == use.name.endswith("_bucket")
        if family.source == "gateway":
            assert use.groups, f"{use.name} is shown by each gateway"
            assert use.groups[-1][0] in ("max", "min"), (
                f"{use.name} is shown by each gateway: it must not be counted twice"
            )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_rules_say_all_that_someone_who_is_woken_needs(rule: dict[str, Any]) -> None:
    assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert DURATION.fullmatch(rule["for"])
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert all(text.rstrip().endswith(".") for name, text in rule["annotations"].items() if name != "runbook")
    file, _, heading = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (TOP / file).read_text("utf-8"), re.MULTILINE)
    assert heading in [each.lower().replace(" ", "-") for each in headings]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_summary_names_labels_that_its_alert_has(rule: dict[str, Any]) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))

    first = next(uses(promql_parser.parse(rule["expr"])))

    assert named <= (first.groups[0][1] if first.groups else set())


@pytest.mark.parametrize("rule", [rule for rule in RULES if "/ sum" in rule["expr"]], ids=lambda rule: rule["alert"])
def test_a_share_of_few_wakes_nobody(rule: dict[str, Any]) -> None:
    share, _, least = (
        rule["expr"].partition("\n  and ") if "\n  and " in rule["expr"] else rule["expr"].partition("\nand ")
    )

    assert "> 0." in share
    assert re.search(r"increase\(.*\) > 10$", least.strip())


def test_rules_have_names_of_their_own_and_groups_too() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    assert [group.keys() for group in GROUPS] == [{"name", "rules"}] * len(GROUPS)


def test_the_example_for_prometheus_loads_the_rules_and_has_the_jobs_that_queries_name() -> None:
    jobs = {job["job_name"] for job in PROMETHEUS["scrape_configs"]}
    named = set(re.findall(r'job="([\w-]+)"', write_metrics.ALERTS.read_text("utf-8")))

    assert [MONITORING / name for name in PROMETHEUS["rule_files"]] == [write_metrics.ALERTS]
    assert named <= jobs
    assert all(job.startswith("cantata-") for job in jobs), "the dashboard finds them by this"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus's promtool is not here")
def test_prometheus_takes_the_example_with_the_job_of_flower_and_its_login(tmp_path: Path) -> None:
    text = (MONITORING / "prometheus.yml").read_text("utf-8")
    before, _, job = text.partition("  # - job_name: cantata-flower\n")
    secret = tmp_path / "flower-password"
    secret.write_text("a-long-password")
    lines = ["- job_name: cantata-flower", *(line.removeprefix("  # ") for line in job.splitlines())]
    whole = before + "\n".join(f"  {line}" for line in lines) + "\n"
    whole = whole.replace("/etc/prometheus/flower-password", str(secret))
    (tmp_path / "prometheus.yml").write_text(whole)
    shutil.copy(write_metrics.ALERTS, tmp_path)

    checked = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert checked.returncode == 0, checked.stderr + checked.stdout
    added = yaml.safe_load(whole)["scrape_configs"][-1]
    assert (added["job_name"], {*added["basic_auth"]}) == ("cantata-flower", {"username", "password_file"})
    compose = yaml.safe_load((TOP / "docker-compose.yml").read_text("utf-8"))
    assert added["static_configs"][0]["targets"] == [f"flower:{compose['services']['flower']['command'][-1]}"]


def test_the_dashboard_shows_every_metric() -> None:
    shown = {
        use.name
        for panel in PANELS
        for target in panel["targets"]
        for use in uses(promql_parser.parse(filled(target["expr"])))
    }

    assert {
        known.name for known in FAMILIES if not {name for name, family in series().items() if family is known} & shown
    } == set()


def test_the_dashboard_takes_its_data_from_the_source_that_is_chosen() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}

    assert variables.keys() == {"datasource", "queue", "model"}
    assert all(variables[name]["datasource"] == chosen for name in ("queue", "model"))
    assert all(panel["datasource"] == chosen for panel in PANELS)
    assert all(target["datasource"] == chosen for panel in PANELS for target in panel["targets"])
    for name in ("queue", "model"):
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables[name]["definition"]).groups()  # type: ignore[union-attr]
        assert label in series()[metric].labels


def test_panels_lie_beside_each_other() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]

    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_the_page_lists_every_metric_and_every_alert() -> None:
    page = write_metrics.PAGE.read_text("utf-8")

    assert page == write_metrics.written(page), "run: python -m tests.acceptance.write_metrics"
    assert all(f"| `{family.name}` |" in page for family in FAMILIES)
    assert all(f"| {rule['alert']} |" in page for rule in RULES)
