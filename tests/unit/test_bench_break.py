"""What servers, disks and files may do: no figure is flattered by it, and no run breaks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from liveedge.bench.compare import compare, markdown
from liveedge.bench.documents import MAX_BYTES, told
from liveedge.bench.environment import fact
from liveedge.bench.gate import gate_of, judge
from liveedge.bench.measures import Offsets, is_good, summarise, summarise_folder
from liveedge.bench.record import Record, record_of
from liveedge.bench.result import RECORDS, SUMMARY, ResultFolder, ResultInvalid
from liveedge.bench.run import RecordLog
from liveedge.bench.scenario import Objectives
from liveedge.cli_bench.telling import printable
from tests.bench_records import answer, constant
from tests.bench_results import WALL_MS, Simulated, make_result, scenario
from tests.bench_stub import DONE, ROLE, STOP, Piece, Script, chunk, event, plain
from tests.unit.test_bench_compare import run as compared
from tests.unit.test_bench_wild_answers import asked

HUGE = "1" + "0" * 400
RED = chunk(content="red")


def raw(text: str) -> bytes:
    return b"data: " + text.encode() + b"\n\n"


def streamed(*pieces: bytes) -> Script:
    return Script(pieces=[Piece(0.25, piece) for piece in pieces])


async def test_white_space_sent_early_is_no_first_token():
    record = await asked(streamed(ROLE, chunk(content=" \n"), RED, chunk(content=" "), STOP, DONE))
    assert record.first_content_s == pytest.approx(0.01 + 3 * 0.25)
    assert len(record.content_s) == 2  # white space inside an answer is a part of it
    assert record.text == " \nred "


@pytest.mark.parametrize(
    "script",
    [
        streamed(ROLE, STOP, DONE),
        streamed(chunk(content="  "), STOP, DONE),
        streamed(chunk(reasoning_content="hm"), STOP, DONE),
        plain({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}, after_s=0.1),
    ],
    ids=["role alone", "white space", "reasoning alone", "plain"],
)
async def test_an_answer_without_content_is_no_answer(script: Script):
    record = await asked(script)
    assert (record.outcome, record.code) == ("failed", "no_content")


@pytest.mark.parametrize(
    "said",
    [
        f'{{"usage": {{"prompt_tokens": {HUGE}, "completion_tokens": 1e308}}}}',
        f'{{"liveedge": {{"age_ms": {HUGE}, "evidence_at_ms": {HUGE}}}}}',
        f'{{"liveedge": {{"timings_ms": {{"a": {HUGE}, "b": NaN, "c": 1e300, "d": "3"}}}}}}',
        '{"usage": {"prompt_tokens": -1, "completion_tokens": -7}}',
    ],
    ids=["usage", "evidence", "stages", "negative"],
)
async def test_numbers_that_nobody_can_reckon_with_are_left_out(said: str):
    record = await asked(streamed(RED, raw(said), STOP, DONE))
    assert record.outcome == "ok"
    assert record.prompt_tokens is record.completion_tokens is None
    assert record.age_ms is record.evidence_at_ms is None
    assert record.timings_ms == {}


async def test_evidence_is_kept_within_bounds():
    frame: dict[str, Any] = {"stream_id": "s" * 500, "frame_index": 7, "deep": [[[]]], "x": {}}
    stages = {f"stage {n}": 1.0 for n in range(500)}
    said = {"liveedge": {"frames": [frame] * 1200, "timings_ms": stages}}
    record = await asked(streamed(RED, event(said), STOP, DONE))
    assert record.outcome == "ok"
    assert len(record.frames) <= 1024
    assert record.frames[0] == {"stream_id": "s" * 100, "frame_index": 7}
    assert len(record.timings_ms) == 64


async def test_a_character_that_two_events_share_is_put_together_and_a_half_is_replaced(
    tmp_path: Path,
):
    halves = [
        raw(f'{{"choices": [{{"delta": {{"content": "{half}"}}}}]}}')
        for half in ("\\ud83d", "\\ude00", "\\ud800")
    ]
    record = await asked(streamed(*halves, STOP, DONE))
    assert record.text == "\U0001f600\ufffd"
    with RecordLog(ResultFolder(tmp_path)) as log:
        log.ended(record)
        log.judged([record])


def test_what_cannot_be_written_as_utf8_is_written_as_json_escapes_it(tmp_path: Path):
    folder = ResultFolder(tmp_path)
    record = Record(index=0, text="\ud800", outcome="ok")
    with RecordLog(folder) as log:
        log.ended(record)
        log.judged([record])
    assert next(folder.records()).text == "\ud800"


@pytest.mark.parametrize(
    "said",
    [
        "-5",
        "1e999",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
    ],
)
async def test_a_retry_after_that_is_none_is_none(said: str):
    record = await asked(plain(b"{}", after_s=0.1, status=429, Retry_After=said))
    assert (record.outcome, record.retry_after_s) == ("refused", None)


async def test_a_length_that_no_integer_has_ends_the_request_at_once():
    headers = (("Content-Type", "application/json"), ("Content-Length", "9" * 5000))
    record = await asked(Script(headers=headers, pieces=[Piece(0.0, b"{}")]))
    assert record.code == "connection_lost"
    assert "Content-Length" in record.message


def lost(n: int) -> list[Record]:
    """Every second of `n` requests refused."""
    refused: dict[str, Any] = {
        "outcome": "refused",
        "status": 429,
        "code": "queue_full",
        "first_content_s": None,
    }
    return [answer(i, **(refused if i % 2 else {}), correct=True) for i in range(n)]


def test_refusing_is_told_beside_the_latencies_that_it_keeps_short():
    step = summarise(constant(), lost(100), []).steps[0]
    assert step.outcomes["refused"] == 50
    assert "requests without an answer: 50 of 100 (50 429 queue_full)" in step.warnings[0]


def test_a_step_in_which_nothing_was_due_is_invalid():
    work = constant(kind="closed", concurrency=[1], warmup_s=1.0)
    row = {"kind": "generator", "begun_s": 0.0, "repeat": 0, "step": 0, "seconds": 11.0}
    stalled = answer(0, outcome="timeout", warmup=True)
    summary = summarise(work, [stalled], [row])
    assert "no request was due in the measured time" in summary.invalid[0]


def evidence(ms: float) -> list[Record]:
    return [
        replace(one, evidence_at_ms=WALL_MS + one.due_s * 1000 + ms, correct=True)
        for one in (answer(i) for i in range(100))
    ]


def test_evidence_from_the_future_is_told_and_is_not_good():
    work, records = constant(), evidence(60_000.0)
    clock = {"offset_ms": 0.0, "uncertainty_ms": 50.0}
    summary = summarise(work, records, [], clock=clock)
    assert any("evidence from the future" in warning for warning in summary.warnings)
    slo = Objectives(freshness_ms=1000.0)
    assert not is_good(records[0], slo, Offsets.of(work, clock))
    assert is_good(evidence(-100.0)[0], slo, Offsets.of(work, clock))
    unknown = summarise(work, records, [], clock={"offset_ms": 0.0, "uncertainty_ms": None})
    assert not any("future" in warning for warning in unknown.warnings)


def test_frames_that_the_server_dates_later_than_they_were_taken_are_told():
    records = [
        replace(one, known_evidence_at_ms=one.evidence_at_ms - 9000.0)
        for one in evidence(-100.0)
        if one.evidence_at_ms is not None
    ]
    warnings = summarise(constant(), records, []).warnings
    assert any("dates its frames 9000 ms later" in warning for warning in warnings)


def test_a_figure_that_the_run_does_not_have_passes_no_gate():
    rules = [{"figure": "accuracy.colour", "at_least": 0.5}]
    gate = gate_of({"undecided": "pass", "rule": rules})
    assert not judge(gate, compared(), None).passed


def test_a_run_compared_with_itself_shows_no_difference():
    run = compared()
    found = compare(run, run)
    assert not [line for line in found.lines if line.verdict in ("better", "worse")]


def test_a_ratio_to_what_is_below_0_decides_nothing():
    run = compared()
    early = [
        replace(one, evidence_at_ms=one.evidence_at_ms and one.evidence_at_ms + 9e6)
        for one in run.records
    ]
    found = compare(replace(run, records=early), run)
    lines = [line for line in found.lines if line.figure.startswith("freshness_ms")]
    assert {line.verdict for line in lines} == {"undecided"}
    assert "no ratio" in markdown(found)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = scenario(rates_per_s=[4.0], duration_s=10.0)
    path = tmp_path_factory.mktemp("whole")
    make_result(path, asked=work, server=Simulated())
    return path


DAMAGES: list[tuple[str, Any]] = [
    ("due_s", "soon"),
    ("due_s", None),
    ("ended_s", {}),
    ("content_s", ["x"]),
    ("content_s", 5),
    ("outcome", "great"),
    ("outcome", []),
    ("timings_ms", {"a": "b"}),
    ("prompt_tokens", 10**400),
    ("text", 7),
]


@pytest.mark.parametrize(("name", "value"), DAMAGES, ids=[f"{n} {v!s:.9}" for n, v in DAMAGES])
def test_a_damaged_record_is_refused_by_its_number(
    result: Path, tmp_path: Path, name: str, value: Any
):
    lines = (result / RECORDS).read_text(encoding="utf-8").splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), name: value})
    (tmp_path / RECORDS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ResultInvalid, match="record 3 is none"):
        list(ResultFolder(tmp_path).records())


@pytest.mark.parametrize("line", ["5", "[" * 100_000, '"x"', "{"])
def test_a_line_that_is_no_object_is_refused_and_half_a_line_at_the_end_left_out(
    tmp_path: Path, line: str
):
    (tmp_path / RECORDS).write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(ResultInvalid):
        list(ResultFolder(tmp_path).records())
    (tmp_path / RECORDS).write_text(line, encoding="utf-8")
    assert list(ResultFolder(tmp_path).records()) == []


@pytest.mark.parametrize(
    ("name", "document"),
    [
        (SUMMARY, {"steps": 5}),
        (SUMMARY, {"steps": [{}]}),
        ("samples.jsonl", {"kind": "generator", "repeat": "x", "step": 0}),
        ("samples.jsonl", {"at_s": 7.0, "machine": {"cpu_share": "much"}}),
    ],
    ids=["no steps", "empty step", "generator", "sample"],
)
def test_other_damage_is_told_as_damage(
    result: Path, tmp_path: Path, name: str, document: dict[str, Any]
):
    for path in result.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    folder = ResultFolder(tmp_path)
    if name == SUMMARY:
        folder.write(SUMMARY, document)
        with pytest.raises(ResultInvalid, match="delete it"):
            folder.summary()
    else:
        folder.append(name, [document])
        with pytest.raises(ResultInvalid, match="is damaged"):
            summarise_folder(folder)


def test_a_record_of_an_older_line_is_read():
    assert record_of({"index": 1, "due_s": 2, "outcome": "ok", "newer": 1}).due_s == 2


def test_nothing_that_a_server_says_steers_a_terminal():
    assert printable("a\x1b[2J\x07\u202eb\ud800\n") == "a\ufffd[2J\ufffd\ufffdb\ufffd\n"


async def test_a_document_without_end_is_not_read_whole():
    async def endless():
        for _ in range(1000):
            yield b"x" * (1 << 16)

    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=endless()))
    async with httpx.AsyncClient(transport=transport) as http:
        with pytest.raises(httpx.RequestError, match=str(MAX_BYTES)):
            await told(http, "http://server/v1/version")


def test_a_fact_that_would_fill_the_file_is_none():
    assert fact("bf16") == "bf16"
    assert fact(["x" * 100] * 1000) is None
