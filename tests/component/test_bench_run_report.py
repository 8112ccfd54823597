"""Reports of whole result folders: complete, safe, bounded, whatever a run looks like."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from liveedge.bench.measures import summarise_folder
from liveedge.bench.record import OUTCOMES, Outcome, Record
from liveedge.bench.report.chart import Series
from liveedge.bench.report.content import content
from liveedge.bench.report.run_view import labels, opened
from liveedge.bench.report.timeline_charts import LOOKS, MOST_POINTS, timeline_charts
from liveedge.bench.report.write import write_comparison, write_report
from liveedge.bench.result import (
    ENVIRONMENT,
    RECORDS,
    SAMPLES,
    SCENARIO,
    SUMMARY,
    ResultFolder,
    ResultInvalid,
)
from liveedge.bench.scenario import Scenario, scenario_of
from liveedge.cli import main
from tests.bench_results import Simulated, make_result, scenario

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x00\u202e | `a` [b](http://c) @d"
SHORT = {"duration_s": 12.0, "warmup_s": 2.0, "rates_per_s": [2.0, 8.0, 16.0]}
VOID = {"meta"}
ROUGH = 2  # a quarter of the picture: `result` alone has it whole
KINDS: tuple[Outcome, ...] = ("ok", "ok", "refused", "timeout", "failed")


class Page(HTMLParser):
    """Tags that are opened and closed in order, and every attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert not page.open
    return page


def check(folder: Path, stem: str = "report") -> str:
    """What holds for every report; gives its page."""
    text = (folder / f"{stem}.html").read_text(encoding="utf-8")
    page = parsed(text)
    assert "script" not in page.tags
    for name, value in page.attributes:
        assert not name.startswith("on"), name
        assert name not in ("src", "style") or value == "position:absolute"
        assert name != "href" or (value or "").startswith("#")
        assert "url(" not in (value or "").replace("url(#hatch", "")
    names = [value for name, value in page.attributes if name == "id"]
    assert len(names) == len(set(names))
    pointed = [value or "" for name, value in page.attributes if name == "aria-labelledby"]
    assert set(" ".join(pointed).split()) <= set(names)
    drawings = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    assert drawings
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing
    assert "url(http" not in text
    assert "@import" not in text
    written = (folder / f"{stem}.md").read_text(encoding="utf-8")
    assert written.isascii()
    with Image.open(folder / f"{stem}.png") as picture:
        assert picture.format == "PNG"
        assert picture.size[0] > 1000
    return text


def bare(path: Path, records: list[Record], asked: Scenario | None = None) -> ResultFolder:
    """A folder with these records and nothing sampled."""
    path.mkdir(parents=True)
    folder = ResultFolder(path)
    folder.write(SCENARIO, (asked or one_step()).as_json())
    folder.write(ENVIRONMENT, {})
    folder.append(RECORDS, (record.as_json() for record in records))
    folder.append(SAMPLES, [])
    return folder


def one_step(**other) -> Scenario:
    return scenario_of({"name": "one", "load": {"rates_per_s": [2.0], "duration_s": 5.0}, **other})


def answer(index: int = 0, **other) -> Record:
    due_s = 6.0 + index
    known = {
        "due_s": due_s,
        "sent_s": due_s + 0.001,
        "sent_at_ms": 1e12 + due_s * 1000,
        "first_content_s": due_s + 0.2,
        "content_s": [due_s + 0.2],
        "ended_s": due_s + 0.3,
        "outcome": "ok",
        "status": 200,
        "question": "lamp",
    }
    return Record(index=index, **{**known, **other})


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> ResultFolder:
    folder = make_result(tmp_path_factory.mktemp("result") / "ours", asked=scenario(**SHORT))
    write_report(folder)
    return folder


def test_a_report_is_one_file_without_a_script_or_an_address(result: ResultFolder) -> None:
    text = check(result.path)
    for title in ("Latency", "Achieved", "Distributions", "Timeline", "Accuracy", "Failures"):
        assert title in text
    assert "Server stages" in text
    assert "docs/benchmark.md" in text
    assert "liveedge bench run sweep.toml" in text
    assert "prefers-color-scheme:dark" in text


def test_the_first_screen_says_what_and_whether_it_is_valid(result: ResultFolder) -> None:
    document = content([opened(result, summarise_folder)])
    assert document.verdict.word.startswith("Valid")
    assert any("Poisson" in line for line in document.subtitle)
    assert any("Objectives: TTFT within 800 ms" in line for line in document.subtitle)
    assert document.key_table is not None
    assert len(document.key_table.rows) == 3
    assert any("Goodput" in fact.name for fact in document.facts)


def test_a_missing_summary_is_made_and_kept(tmp_path: Path, result: ResultFolder) -> None:
    asked = []

    def summarise(folder: ResultFolder):
        asked.append(folder)
        return summarise_folder(folder)

    folder = bare(tmp_path / "a", [answer(n) for n in range(5)])
    write_report(folder, summarise=summarise, fine=ROUGH)
    write_report(folder, summarise=summarise, fine=ROUGH)
    assert len(asked) == 1
    assert (folder.path / SUMMARY).exists()


def test_every_outcome_has_its_mark(tmp_path: Path) -> None:
    records = [answer(0)]
    for n, outcome in enumerate(OUTCOMES, start=1):
        if outcome != "ok":
            records.append(answer(n, outcome=outcome, status=0, code=f"code_{outcome}"))
    records[-1].sent_s = records[-1].ended_s = None  # what was not sent has no end
    folder = bare(tmp_path / "a", records)
    write_report(folder, fine=ROUGH)
    text = check(folder.path)
    for outcome, (label, _) in LOOKS.items():
        assert f"{label} (1)" in text, outcome
        if outcome != "ok":
            assert f"code_{outcome}" in text


def test_time_outs_are_part_of_every_chart_of_arrivals(tmp_path: Path) -> None:
    records = [answer(n) for n in range(3)]
    records += [
        answer(n, outcome="timeout", code="timeout", first_content_s=None, status=0) for n in (3,)
    ]
    records[3].first_content_s, records[3].content_s = None, []
    folder = bare(tmp_path / "a", records)
    write_report(folder, fine=ROUGH)
    text = check(folder.path)
    assert "75 %" in text
    assert "never arrived" in text
    assert "time-outs at their bound" in text


def test_what_servers_say_is_text(tmp_path: Path) -> None:
    asked = one_step(about=HOSTILE, target={"model": HOSTILE})
    asked = replace(asked, name=HOSTILE)
    records = [answer(n, question=HOSTILE, correct=True, truth=HOSTILE) for n in range(4)]
    records += [answer(4, outcome="refused", status=500, code=HOSTILE, message=HOSTILE)]
    records[0].timings_ms = {HOSTILE: 3.0, "total": 200.0}
    folder = bare(tmp_path / "a", records, asked)
    folder.write(ENVIRONMENT, {"server": {HOSTILE: HOSTILE}, "command": HOSTILE, "list": [HOSTILE]})
    write_report(folder, fine=ROUGH)
    text = check(folder.path)
    assert "alert(1)" in text
    assert "<img" not in text
    written = (folder.path / "report.md").read_text()
    outside = "\n".join(line for line in written.splitlines() if not line.startswith("    "))
    assert "<script" not in outside.replace("\\<", "")
    assert "](http" not in outside.replace("\\]", "")


@pytest.mark.parametrize(
    "records",
    [
        [],
        [answer()],
        [answer(n, outcome="refused", status=429, code="queue_full") for n in range(4)],
        [answer(n, outcome="not_sent", sent_s=None, ended_s=None, status=0) for n in range(4)],
        [answer(n, warmup=True) for n in range(4)],
        [answer(n, ended_s=6.0 + n, first_content_s=6.0 + n) for n in range(4)],
    ],
    ids=["empty", "one", "all-refused", "none-sent", "warm-up-alone", "no-time-at-all"],
)
def test_a_run_of_any_kind_has_a_report(tmp_path: Path, records: list[Record]) -> None:
    for record in records:
        if record.outcome != "ok":
            record.first_content_s, record.content_s = None, []
    folder = bare(tmp_path / "a", records)
    write_report(folder, fine=ROUGH)
    check(folder.path)


def test_the_shares_of_a_mix_are_told_apart(tmp_path: Path) -> None:
    mix = [
        {"name": "now", "weight": 3.0, "kinds": ["lamp"]},
        {"name": "clip", "kinds": ["door"], "media": {"frames": 4}},
    ]
    records = [
        answer(n, share="clip" if n % 4 == 0 else "now", correct=n % 4 != 0, truth="on")
        for n in range(12)
    ]
    folder = bare(tmp_path / "a", records, one_step(mix=mix))
    write_report(folder)
    text = check(folder.path)
    assert "a mix of 75 % now (1 frame of 640x480), 25 % clip (4 frames of 640x480)" in text
    assert "The shares of the mix" in text
    assert "Accuracy by what the model was shown" in text
    assert "now, 1 frame of 640x480: 9 of 9 right" in text
    assert "clip, 4 frames of 640x480: 0 of 3 right" in text


def test_a_closed_loop_has_a_report_that_says_so(tmp_path: Path) -> None:
    asked = one_step(load={"kind": "closed", "concurrency": [1, 4], "duration_s": 5.0})
    folder = bare(tmp_path / "a", [answer(n, step=n % 2) for n in range(8)], asked)
    write_report(folder, fine=ROUGH)
    text = check(folder.path)
    assert "closed loop" in text
    assert "4 in flight" in text


def test_steps_that_are_not_valid_are_marked(tmp_path: Path) -> None:
    records = [answer(n) for n in range(9)]
    records.append(answer(9, outcome="not_sent", sent_s=None, ended_s=None, status=0))
    folder = bare(tmp_path / "a", records)
    write_report(folder, fine=ROUGH)
    text = check(folder.path)
    assert "step is not valid" in text
    assert "max_in_flight" in text
    document = content([opened(folder, summarise_folder)])
    assert document.verdict.tone in ("bad", "doubt")
    assert document.verdict.reasons


def test_runs_are_shown_side_by_side(tmp_path: Path, result: ResultFolder) -> None:
    peer = make_result(
        tmp_path / "peer", asked=scenario(**SHORT), server=Simulated(service_s=0.6), seed=2
    )
    before = sorted(one.name for one in result.path.iterdir())
    write_comparison([result, peer], tmp_path / "both", fine=ROUGH)
    text = check(tmp_path / "both", "compare")
    assert "ours and peer" in text
    assert sorted(one.name for one in result.path.iterdir()) == before


def test_unequal_work_is_shown_with_a_word_about_it(tmp_path: Path, result: ResultFolder) -> None:
    other = bare(tmp_path / "peer", [answer(n) for n in range(3)])
    write_comparison([result, other], tmp_path / "both", fine=ROUGH)
    assert "did not do the same work" in check(tmp_path / "both", "compare")


def test_an_open_and_a_closed_loop_share_no_axis(tmp_path: Path, result: ResultFolder) -> None:
    asked = one_step(load={"kind": "closed", "concurrency": [1], "duration_s": 5.0})
    closed = bare(tmp_path / "a", [answer(0)], asked)
    with pytest.raises(ResultInvalid, match="no axis of load in common"):
        write_comparison([result, closed], tmp_path / "both", fine=ROUGH)


def test_runs_of_one_name_are_told_apart() -> None:
    assert labels(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]


def test_a_long_run_is_thinned_and_says_so(tmp_path: Path) -> None:
    """100,000 requests at most stay below 1 MB; here fewer, spread as widely."""
    records = []
    for n in range(8_000):
        due_s = n * 0.125
        took_s = 0.05 + (n * 7919 % 1000) / 200
        kind = KINDS[n % len(KINDS)]
        records.append(
            Record(
                index=n,
                step=n // 2000,
                due_s=due_s,
                sent_s=due_s,
                sent_at_ms=1e12,
                first_content_s=due_s + took_s / 2 if kind == "ok" else None,
                ended_s=due_s + took_s,
                outcome=kind,
                code=kind,
                status=200,
            )
        )
    asked = scenario_of(
        {"name": "long", "load": {"rates_per_s": [8.0, 8.5, 9.0, 10.0], "duration_s": 250.0}}
    )
    folder = bare(tmp_path / "a", records, asked)
    write_report(folder, fine=ROUGH)
    text = check(folder.path)
    assert len(text) < 1_000_000
    assert "points are drawn" in text
    view = opened(folder, summarise_folder)
    requests = timeline_charts(view)[0]
    drawn = [mark for mark in requests.marks if isinstance(mark, Series)]
    assert sum(len(mark.points) for mark in drawn) <= MOST_POINTS
    assert len(drawn) == 4  # every outcome is still there


def test_the_command_writes_and_names_the_files(result: ResultFolder, capsys) -> None:
    assert main(["bench", "report", str(result.path)]) == 0
    named = capsys.readouterr().out.split()
    assert [Path(one).name for one in named] == ["report.html", "report.md", "report.png"]


def test_the_command_says_what_is_no_result(tmp_path: Path, capsys) -> None:
    assert main(["bench", "report", str(tmp_path)]) == 1
    assert "scenario.json cannot be read" in capsys.readouterr().err


def test_a_broken_last_line_does_not_hide_the_rest(tmp_path: Path) -> None:
    folder = bare(tmp_path / "a", [answer(n) for n in range(3)])
    with (folder.path / RECORDS).open("a") as file:
        file.write(json.dumps(answer(3).as_json())[:40])
    write_report(folder, fine=ROUGH)
    check(folder.path)
