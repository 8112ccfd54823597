"""The dashboard and the alerts ask for what `/metrics` gives: names, labels, kinds."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.serving import serving
from tests.unit.test_api_metrics import Family, parse

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana" / "liveedge.json"
ALERTS = DOCS / "prometheus" / "alerts.yml"
_METRIC = re.compile(r"(liveedge_[a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)(?:=~|!~|!=|=)"([^"]*)"')
_BY = re.compile(r"by \(([a-z_, ]+)\)")
OF_PROMETHEUS = {"instance", "job"}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    return list(dashboard()["panels"])


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (rule["expr"] for rule in alerts())


def family(name: str, found: dict[str, Family]) -> Family:
    if name in found:
        assert found[name].kind != "histogram", f"{name} is a histogram: _bucket, _sum or _count"
        return found[name]
    stem = re.sub(r"_(bucket|sum|count)$", "", name)
    assert stem in found, f"{name} is not in /metrics"
    assert found[stem].kind == "histogram", name
    return found[stem]


def labels_of(one: Family) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for labels in one.samples:
        for key, value in labels:
            values.setdefault(key, set()).add(value)
    return values


async def scraped() -> dict[str, Family]:
    async with serving() as server:
        await server.filled_stream(1)
        return parse((await server.client.get("/metrics")).text)


async def test_every_expression_asks_for_metrics_and_labels_that_exist():
    found = await scraped()
    asked = list(expressions())
    assert len(asked) > 60
    for expression in asked:
        known = set(OF_PROMETHEUS)
        for name, matchers in _METRIC.findall(expression):
            one = family(name, found)
            labels = labels_of(one)
            known |= labels.keys()
            if not one.samples:  # of what is not configured here
                known |= {"provider", "outcome", "state", "requested", "answered"}
                continue
            for label, _ in _MATCHER.findall(matchers):
                assert label in OF_PROMETHEUS | labels.keys(), f"{name} has no {label}"
        # Labels of what is empty until something happens cannot be seen here.
        open_ended = {"reason", "health"}
        for group in _BY.findall(expression):
            assert set(group.split(", ")) <= known | open_ended, expression


async def test_exact_matches_name_values_that_exist():
    found = await scraped()
    for expression in expressions():
        for name, matchers in _METRIC.findall(expression):
            labels = labels_of(family(name, found))
            for label, value in re.findall(r'([a-z_]+)="([^"]*)"', matchers):
                assert value in labels.get(label, {value}), expression


def test_counters_are_asked_for_their_rise_and_brackets_are_closed():
    for expression in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), expression
        for name in re.findall(r"rate\((liveedge_[a-z0-9_]+)", expression):
            assert re.search(r"_(total|bucket|sum|count)$", name), expression
        if "histogram_quantile" in expression:
            assert re.search(r"by \((\w+, )*le(, \w+)*\)", expression), expression


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    ids = Counter(panel["id"] for panel in panels())
    assert max(ids.values()) == 1
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not taken & cells, panel["title"]
        taken |= cells


def test_the_dashboard_asks_where_its_data_is():
    board = dashboard()
    assert board["schemaVersion"] >= 39
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in panels():
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"


def test_alerts_say_what_is_wrong_and_how_bad_it_is():
    names = Counter(rule["alert"] for rule in alerts())
    assert max(names.values()) == 1
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
