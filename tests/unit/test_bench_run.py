"""A whole run into its folder, against a scripted server on a clock that a test moves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from liveedge.bench.generator import SelfLook, StepRun
from liveedge.bench.interfaces import Prepared
from liveedge.bench.record import Record
from liveedge.bench.result import (
    RECORDS,
    SAMPLES,
    UNJUDGED,
    ResultFolder,
    ResultUnwritable,
    Summary,
)
from liveedge.bench.run import Parts, RecordLog, Refused, Target, run_scenario, told
from liveedge.bench.scenario import Scenario
from liveedge.bench.schedule import Step
from liveedge.testing.clock import FakeClock
from tests.bench_parts import FixedSource, NoSampler, no_summary, scenario
from tests.bench_stub import Stub, driven, streamed

ANSWER = streamed(headers_s=0.1, first_s=0.1, gaps_s=[0.1], words=["re", "d"])
SHORT = {"kind": "constant", "warmup_s": 1.0, "duration_s": 2.0, "pause_s": 3.0}


def parts(source: FixedSource, told: Scenario, **changes: Any) -> Parts:
    async def environment() -> Mapping[str, Any]:
        return {"when": "before"}

    async def environment_after(before: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**before, "after": source.state}

    def summarise(folder: ResultFolder) -> Summary:
        return no_summary(folder.scenario(), list(folder.records()), list(folder.samples()))

    made: dict[str, Any] = {
        "source": source,
        "sampler": lambda _keep, _begun_s: NoSampler(),
        "environment": environment,
        "environment_after": environment_after,
        "summarise": summarise,
        "write_report": lambda folder: (folder.path / "report.md").write_text("done"),
        "look": SelfLook(every_s=0.5),
    }
    return Parts(**made | changes)


async def run_into(
    path: Path, told: Scenario, source: FixedSource, **changes: Any
) -> tuple[ResultFolder, Stub]:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: ANSWER, clock=clock)
    folder = ResultFolder(path)
    target = Target(model="m", api_key=None, dial=stub.dial)
    made = parts(source, told, **changes)
    await driven(clock, run_scenario(told, folder, target=target, parts=made, clock=clock))
    return folder, stub


async def test_a_run_leaves_every_file_of_its_result(tmp_path: Path) -> None:
    told = scenario(load={**SHORT, "rates_per_s": [2, 4], "repeats": 2})
    said: list[str] = []

    folder, stub = await run_into(tmp_path, told, FixedSource(), say=said.append)

    records, samples = list(folder.records()), list(folder.samples())
    assert folder.scenario() == told
    assert folder.environment() == {"when": "before", "after": "closed"}
    assert folder.summary().valid
    assert (tmp_path / "report.md").read_text() == "done"
    assert not (tmp_path / UNJUDGED).exists()
    assert [record.index for record in records] == list(range(len(stub.served)))
    assert all(record.correct and record.truth == "red" for record in records)
    assert [(row["kind"], row["repeat"], row["step"]) for row in samples] == [
        ("generator", 0, 0),
        ("generator", 0, 1),
        ("generator", 1, 0),
        ("generator", 1, 1),
    ]
    assert "step 2/4: offered 4/s: 8 sent, 8 ok, p95 TTFT 200 ms, 0 not ok" in said[2]


async def test_steps_have_a_pause_between_them_and_none_before_the_first(tmp_path: Path) -> None:
    told = scenario(load={**SHORT, "rates_per_s": [1, 1]})

    folder, _ = await run_into(tmp_path, told, FixedSource())

    first, second = (row["begun_s"] for row in folder.samples())
    assert first == pytest.approx(0.0)
    assert second == pytest.approx(1.0 + 2.0 + 3.0)


async def test_records_of_the_probe_come_before_those_of_the_steps(tmp_path: Path) -> None:
    async def probe(asker: Any, _source: Any) -> list[dict[str, Any]]:
        return [{"kind": "cold", "name": "x_ms", "ms": 1.0, "index": asker.next_index()}]

    told = scenario(load={**SHORT, "rates_per_s": [1]})

    folder, _ = await run_into(tmp_path, told, FixedSource(), probe=probe)

    assert next(folder.samples())["kind"] == "cold"
    assert next(folder.records()).index == 1


def refusing(status: int) -> Any:
    async def probe(_asker: Any, _source: Any) -> list[dict[str, Any]]:
        record = Record(index=0, outcome="refused", status=status, code="no", message="never")
        return [{"kind": "cold", "name": "first_request_ms", "records": [record.as_json()]}]

    return probe


@pytest.mark.parametrize(
    ("status", "changes", "hint"),
    [
        (404, {}, "404 no: never"),
        (401, {}, "from the variable LIVEEDGE_API_KEY"),
        (400, {"target": {"delivery": "data"}, "media": {"frames": 4}}, "target.video=avi"),
        (
            400,
            {"target": {"delivery": "data", "video": "avi"}, "media": {"frames": 4}},
            "target.video=jpegs",
        ),
    ],
)
async def test_a_run_ends_at_once_where_its_first_request_is_refused_for_good(
    tmp_path: Path, status: int, changes: dict[str, Any], hint: str
) -> None:
    told, source = scenario(load={**SHORT, "rates_per_s": [1]}, **changes), FixedSource()

    with pytest.raises(Refused, match="the first request was refused, as all would be") as failed:
        await run_into(tmp_path, told, source, probe=refusing(status))

    assert hint in str(failed.value)
    assert source.state == "closed"


@pytest.mark.parametrize("status", [409, 429, 503])
async def test_a_run_goes_on_where_its_first_request_came_at_a_bad_moment(
    tmp_path: Path, status: int
) -> None:
    told = scenario(load={**SHORT, "rates_per_s": [1]})

    folder, _ = await run_into(tmp_path, told, FixedSource(), probe=refusing(status))

    assert len(list(folder.records())) == 3


def test_a_step_is_told_with_what_was_lost_and_how() -> None:
    step = Step(repeat=0, step=0, rate_per_s=2.0, warmup_s=1.0, duration_s=4.0)
    ok = Record(index=0, outcome="ok", status=200, due_s=1.0, first_content_s=1.5)
    late = [Record(index=n, outcome="timeout", status=200, code="timeout") for n in (1, 2)]
    shut = Record(index=3, outcome="refused", status=429, code="queue_full")
    own = {"lateness_ms_max": 1.0, "loop_stall_ms_max": 2.0, "cpu_share": 0.03}

    line = told(StepRun(step=step, begun_s=0.0, records=[ok, *late, shut], own=own))

    assert line == (
        "offered 2/s: 4 sent, 1 ok, p95 TTFT 500 ms, 3 not ok, most of them timeout"
        " (own: late 1 ms, stall 2 ms, CPU 3%)"
    )


class BrokenSource(FixedSource):
    """Its camera is gone after the first requests."""

    def prepare(self, index: int) -> Any:
        if index == 5:
            raise RuntimeError("the camera is gone")
        return super().prepare(index)


async def test_a_run_that_breaks_leaves_what_has_ended_and_closes_its_cameras(
    tmp_path: Path,
) -> None:
    source = BrokenSource()
    told = scenario(load={**SHORT, "rates_per_s": [5]})

    with pytest.raises(RuntimeError, match="the camera is gone"):
        await run_into(tmp_path, told, source)

    left = [json.loads(line) for line in (tmp_path / UNJUDGED).read_text().splitlines()]
    assert [(row["index"], row["code"]) for row in left] == [
        *((index, "") for index in range(4)),
        (4, "run_ended"),  # it was open
    ]
    assert source.state == "closed"
    assert (tmp_path / RECORDS).read_text() == ""


async def test_a_step_that_cannot_be_judged_is_kept_without_truth(tmp_path: Path) -> None:
    class Unjudged(FixedSource):
        async def judge(self, records: Sequence[Record], notes: Mapping[int, Prepared]) -> None:
            raise RuntimeError("the publisher has ended")

    told = scenario(load={**SHORT, "rates_per_s": [2, 2]})

    with pytest.raises(RuntimeError, match="the publisher has ended"):
        await run_into(tmp_path, told, Unjudged())

    assert [(one.outcome, one.truth) for one in ResultFolder(tmp_path).records()] == [
        ("ok", None)
    ] * 6
    assert not (tmp_path / UNJUDGED).exists()


async def test_a_camera_that_cannot_be_opened_ends_the_run_before_any_request(
    tmp_path: Path,
) -> None:
    class Closed(FixedSource):
        async def open(self) -> None:
            raise RuntimeError("no camera")

    source = Closed()

    with pytest.raises(RuntimeError, match="no camera"):
        await run_into(tmp_path, scenario(load=SHORT), source)

    assert source.state == "closed"
    assert (tmp_path / SAMPLES).exists()


async def test_a_full_disk_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / RECORDS).symlink_to("/dev/full")
    source = FixedSource()

    with pytest.raises(ResultUnwritable, match=r"records\.jsonl cannot be written: No space left"):
        await run_into(tmp_path, scenario(load=SHORT), source)

    assert source.state == "closed"
    left = [json.loads(line) for line in (tmp_path / UNJUDGED).read_text().splitlines()]
    assert {row["outcome"] for row in left} == {"ok"}  # nothing that was measured is lost for it


def test_judged_records_take_the_place_of_those_written_as_they_ended(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    record = Record(index=4, outcome="ok")
    with RecordLog(folder) as log:
        log.ended(record)
        assert '"index": 4' in (tmp_path / UNJUDGED).read_text()
        record.truth = "red"
        log.judged([record])
        assert (tmp_path / UNJUDGED).read_text() == ""

    assert [one.truth for one in folder.records()] == ["red"]
