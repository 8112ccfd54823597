"""Verdicts about scripted logs: what must fail fails for its own reason, and nothing else does."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path
from typing import Any

import pytest

from liveedge.bench.soak.checks import Finding
from liveedge.bench.soak.growth import Judged
from liveedge.bench.soak.page import html as page
from liveedge.bench.soak.verdict import Verdict, as_json, as_text, judged, server_logs, verdict
from tests.soak_logs import KILLS_S, Script, act, view

pytestmark = pytest.mark.unit

NO_CRASH = Finding("no crash in the server's log", "pass", "1 logs")


def of(script: Script) -> Verdict:
    return verdict(script.lines(), script.options, NO_CRASH)


def failures(found: Verdict) -> dict[str, str]:
    """What failed, and why."""
    told = {one.what: one.says for one in found.findings if one.outcome == "fail"}
    grown = {one.series.name: one.says for one in found.growths if one.growth == "grows"}
    return {**told, **grown}


def growth(found: Verdict, name: str) -> Judged:
    return next(one for one in found.growths if one.series.name == name)


def test_a_soak_in_which_nothing_grows_and_nothing_breaks_passes() -> None:
    found = of(Script())
    open_ones = [one.says for one in found.growths if one.growth == "undecided"]
    assert (found.outcome, failures(found), open_ones, found.status) == ("pass", {}, [], 0)
    cache = growth(found, "encoder_cache_bytes")
    assert cache.growth == "pool"


@pytest.mark.parametrize(
    ("leak", "series"),
    [
        ({"server_mb_per_h": 12.0}, "server: memory of its own"),
        ({"engine_mb_per_h": 40.0}, "engine: memory of its own"),
        ({"fds_per_h": 6.0}, "server: descriptors"),
        ({"age_ms_per_h": 150.0}, "age of the newest frames"),
    ],
)
def test_a_leak_is_found_at_its_rate(leak: dict[str, float], series: str) -> None:
    found = of(Script(**leak))  # type: ignore[arg-type]  # rates are floats
    assert (found.outcome, found.status) == ("fail", 1)
    slope = growth(found, series).slope
    assert slope is not None
    assert slope.low <= next(iter(leak.values())) <= slope.high
    grown = set(failures(found))
    role = series.split(":", maxsplit=1)[0]
    assert series in grown
    assert all(name.startswith(role) for name in grown)


def test_times_that_grow_beside_the_load_of_the_machine_are_no_proof() -> None:
    found = of(Script(age_ms_per_h=150.0, load_per_h=3.0))
    assert found.outcome == "undecided"
    says = growth(found, "age of the newest frames").says
    assert says.endswith("but the machine's load rose with it")


def test_an_error_of_the_server_fails_unless_the_engine_was_being_killed() -> None:
    def refused(at_s: float) -> dict[str, Any]:
        return {
            "what": "ask",
            "at_s": at_s + 0.1,
            "begun_s": at_s,
            "kind": "lamp",
            "stream": "s1",
            "status": 503,
            "code": "model_unavailable",
        }

    assert failures(of(Script(extra=[refused(KILLS_S[0] + 1)]))) == {}
    found = failures(of(Script(extra=[refused(3000.0)])))
    assert list(found) == ["no error of the server without an injected fault"]
    assert "lamp at 3000 s: 503 model_unavailable" in next(iter(found.values()))


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        (act("disconnect", 1, 90.0, 150.0, ok=False, status=0, error="timed out"), "every request"),
        (act("loss", 2, 1300.0, 1400.0, ok=False, back_s=None), "cameras come back"),
        (
            act("kill", 9, 2400.0, 2520.0, ok=False, recovered_real_s=None),
            "the engine comes back after a kill",
        ),
        (act("watch", 2, 100.0, 200.0, ended="failed", events={}), "watches"),
        (
            act("watch", 2, 100.0, 200.0, ended="deleted", events={"out of order": 1}),
            "watches",
        ),
        (
            [{"what": "look", "at_s": 50.0, "streams": [view(1.0) | {"adds_up": False}] * 5}],
            "counters of the streams add up",
        ),
        (
            [{"what": "rest", "at_s": 7190.0, "gauges": {"liveedge_sessions_used": 1.0}}],
            "nothing is left in progress",
        ),
        (
            [
                {
                    "what": "ask",
                    "at_s": 99.0,
                    "begun_s": 98.0,
                    "kind": "lamp",
                    "stream": "s3",
                    "status": 404,
                    "code": "stream_not_found",
                }
            ],
            "cameras stay until they leave",
        ),
        ([{"what": "end", "at_s": 7190.0, "number": 1, "reason": "failed"}], "the soak did"),
    ],
)
def test_what_breaks_fails_for_that_reason_alone(extra: list[dict[str, Any]], what: str) -> None:
    found = failures(of(Script(extra=extra)))
    assert len(found) == 1
    assert next(iter(found)).startswith(what)


def test_wrong_answers_fail_where_they_are_more_than_a_tenth() -> None:
    assert list(failures(of(Script(wrong_share=0.2)))) == ["wrong answers, at most 10%"]


def test_an_engine_that_ends_by_itself_is_a_failure() -> None:
    found = failures(of(Script(n_restarts=6)))
    assert found == {"the engine ends by no other cause": "6 restarts, 4 kills"}


def test_a_soak_that_is_not_over_or_whose_parts_crashed_is_undecided() -> None:
    not_over = of(Script(is_over=False))
    assert (not_over.outcome, not_over.status) == ("undecided", 3)
    crashed = of(Script(extra=[{"what": "crash", "at_s": 9.0, "part": "ask", "error": "x"}]))
    assert crashed.outcome == "undecided"


@pytest.mark.parametrize("speed", [1.0, 8.0])
def test_accelerated_time_is_called_so_everywhere(speed: float) -> None:
    found = of(Script(speed=speed))
    is_said = speed != 1.0
    told = as_json(found)
    assert ("ACCELERATED stream time: 8 times" in as_text(found)) == is_said
    assert (told["accelerated"], told["time"].startswith("ACCELERATED")) == (is_said, is_said)
    assert ("ACCELERATED stream time: 8 times" in page(found)) == is_said
    json.dumps(told, allow_nan=False)


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = page(of(Script(server_mb_per_h=12.0)))
    assert "FAIL" in text
    assert "prefers-color-scheme:dark" in text
    assert "server: memory of its own grows" in text
    assert text.count("<figure") >= 8

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag not in ("script", "link", "img", "iframe")
            links = [value or "" for name, value in attrs if name in ("src", "href")]
            assert all(link.startswith("#") for link in links)

    Parser().feed(text)


def test_a_crash_in_a_servers_log_fails(tmp_path: Path) -> None:
    log = tmp_path / "server-1.log"
    log.write_text("12:00 ERROR the engine process ended with status -9; it is started again\n")
    assert server_logs(tmp_path).outcome == "pass"
    log.write_text("12:00 ERROR task watches:x crashed\nTraceback (most recent call last):\n")
    assert server_logs(tmp_path).outcome == "fail"


def test_the_verdict_is_computed_from_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "server-1.log").write_text("")
    with (tmp_path / "soak.jsonl").open("w") as file:
        for line in Script().lines():
            file.write(json.dumps(line) + "\n")
        file.write('{"what":"look","at_s":')  # killed while it wrote
    assert judged(tmp_path).outcome == "pass"
