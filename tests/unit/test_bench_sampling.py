"""Looks beside a run: what servers and systems tell, and that no look breaks anything."""

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from liveedge.bench import processes
from liveedge.bench.prometheus import gauges_and_totals, looked_at
from liveedge.bench.sampling import GIVE_UP_AFTER, Looks, Sampler
from liveedge.core.clock import SystemClock
from liveedge.testing.clock import FakeClock
from tests.web_server import Answer, WebServer

OURS = """
# HELP liveedge_num_requests_waiting Requests that wait for a session.
# TYPE liveedge_num_requests_waiting gauge
liveedge_num_requests_waiting 3
liveedge_num_requests_running 8
liveedge_kv_cache_usage_perc 0.25
liveedge_encoder_groups_total{cache="hit"} 70
liveedge_encoder_groups_total{cache="miss"} 30
liveedge_process_resident_memory_bytes{process="engine"} 1e9
liveedge_process_resident_memory_bytes{process="server"} 2e8
liveedge_budget_used{of="questions"} 11
liveedge_budget_used{of="previews"} 1
liveedge_time_to_first_token_seconds_bucket{frames="warm",le="0.1"} 9
liveedge_time_to_first_token_seconds_sum{frames="warm"} 0.4
"""
VLLM = """
vllm:num_requests_running{engine="0",model_name="a/b"} 4.0
vllm:num_requests_running{engine="1",model_name="a/b"} 5.0
vllm:num_requests_waiting{engine="0",model_name="a \\"b\\", c"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.5 1750000000000
vllm:kv_cache_usage_perc{engine="1"} 0.75
python_gc_objects_collected_total{generation="0"} 5e+03
"""
LLAMA = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 6\nllamacpp:kv_cache_usage_ratio 0.1\n"


def test_the_queue_has_one_name_for_every_server():
    assert looked_at(OURS) == {
        "queue_depth": 3,
        "running": 8,
        "kv_used_share": 0.25,
        "encoder_groups_total_hit": 70,
        "encoder_groups_total_miss": 30,
        "process_resident_memory_bytes": 1.2e9,
        "budget_used_questions": 11,
    }
    assert looked_at(VLLM) == {"queue_depth": 2, "running": 9, "kv_used_share": 0.75}
    assert looked_at(LLAMA) == {"queue_depth": 6, "running": 1, "kv_used_share": 0.1}
    assert looked_at('sglang:num_queue_reqs{x="1"} 4\nsglang:num_running_reqs 2') == {
        "queue_depth": 4,
        "running": 2,
    }


def test_nonsense_is_passed_over():
    text = '<html>\nname\nname{ 1\nname{a="b"} x\nname NaN\nname +Inf\n{} 1\n\x00\ngood 1\n'
    assert gauges_and_totals(text) == ({}, {"good": 1.0})
    assert looked_at(text) == {}


def test_gauges_and_totals_keep_their_labels_as_written():
    page = """# HELP a_bytes Held.
# TYPE a_bytes gauge
a_bytes 5
# TYPE b_total counter
b_total{of="x"} 7 1750000000000
# TYPE c gauge
c{pool="kv, slots",of="x"} 1.5e3
c{pool="y"} NaN
# TYPE d histogram
d_bucket{le="1"} 3
d_sum 2.5
"""
    assert gauges_and_totals(page) == (
        {"a_bytes": 5.0, 'c{pool="kv, slots",of="x"}': 1500.0},
        {'b_total{of="x"}': 7.0, "d_sum": 2.5},
    )


def test_a_process_tree_is_found_and_measured():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        clock, waiting = SystemClock(), threading.Event()
        until_s = clock.monotonic_s() + 30
        while len(tree := processes.process_tree(child.pid)) < 2 and clock.monotonic_s() < until_s:
            clock.wait(waiting, 0.02)
        assert len(tree) == 2
        assert tree[0] == child.pid
        took = processes.taken(tree)
        assert took.n_processes == 2
        assert took.rss_bytes > 2 * 2**20
        assert took.pss_bytes is None or took.pss_bytes <= took.rss_bytes
        assert took.n_threads >= 2
    finally:
        child.communicate(b"\n")
    assert processes.process_tree(child.pid) == []
    assert processes.taken([child.pid]).n_processes == 0


def test_a_process_tree_is_found_where_threads_do_not_tell_their_children(tmp_path):
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1)):
        (tmp_path / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 0 0")
    (tmp_path / "version").write_text("Linux")
    assert sorted(processes.process_tree(10, proc=tmp_path)) == [10, 11, 12]
    (tmp_path / "10" / "task" / "10" / "children").write_text("13 ")
    assert sorted(processes.process_tree(10, proc=tmp_path)) == [10, 13]
    assert processes.process_tree(99, proc=tmp_path) == []


def test_time_of_a_thread_and_of_the_machine_goes_forward():
    used_s = processes.thread_cpu_s(threading.get_native_id())
    before = processes.machine_ticks()
    if used_s is None or before is None:
        pytest.skip("no /proc")
    while (
        sum(os.times()[:2]) == 0
        or (processes.thread_cpu_s(threading.get_native_id()) or 0) <= used_s
    ):
        pass
    assert 0 <= (processes.busy_share(before, processes.machine_ticks()) or 0) <= 1
    assert processes.busy_share(None, before) is None


def test_gpus_are_what_the_tool_says(tmp_path):
    tool = tmp_path / "smi"
    tool.write_text(
        "#!/bin/sh\n"
        "echo '0, NVIDIA H200, 87, 40211, 143771, 512.3, 580.1'\n"
        "echo '1, NVIDIA H200, [N/A], 1, 143771, [N/A], 580.1'\n"
        "echo 'No devices were found'\n"
    )
    tool.chmod(0o755)
    first, second = processes.gpus(command=str(tool))
    assert (first.name, first.busy_share, first.memory_used_mb) == ("NVIDIA H200", 0.87, 40211)
    assert (second.busy_share, second.power_w) == (None, None)
    assert processes.gpus(command=str(tmp_path / "none")) == []


@pytest.fixture
def server():
    text = [OURS]
    web = WebServer(lambda _: Answer(text[0].encode(), 200 if text[0] else 503))
    yield web, text
    web.close()


def test_a_look_is_a_row(server):
    web, _text = server
    rows: list[Any] = []
    clock = FakeClock()
    looks = Looks(metrics_url=web.url("/metrics"), headers={"X-Key": "k"}, pid=os.getpid())
    sampler = Sampler(looks, rows.append, clock=clock, began_s=clock.monotonic_s())
    sampler.look()
    clock.move(1.0)
    sampler.look()
    assert [row["at_s"] for row in rows] == [0, 1]
    assert rows[1]["metrics"]["queue_depth"] == 3
    assert rows[1]["machine"]["rss_mb"] > 1
    assert rows[1]["machine"]["target_cpu_cores"] >= 0
    assert "kind" not in rows[0]
    assert {name.lower() for name in web.requests[0].headers} >= {"x-key"}
    assert sampler.trouble == []


def test_a_server_that_does_not_answer_is_asked_no_more_and_that_is_told(server):
    web, text = server
    text[0] = ""
    rows: list[Any] = []
    clock = FakeClock()
    sampler = Sampler(Looks(metrics_url=web.url("/metrics")), rows.append, clock=clock, began_s=0)
    for _ in range(GIVE_UP_AFTER + 3):
        sampler.look()
    assert len(web.paths) == GIVE_UP_AFTER
    assert len(rows) == GIVE_UP_AFTER + 3
    assert sampler.trouble == [f"sampling: /metrics failed {GIVE_UP_AFTER} times"]


def test_a_url_that_is_none_is_told():
    sampler = Sampler(
        Looks(metrics_url="http://[::1"), lambda _: None, clock=FakeClock(), began_s=0
    )
    sampler.look()
    assert sampler.trouble == ["sampling: the URL of /metrics failed 1 times"]


def test_shared_pages_are_counted_now_and_then():
    rows: list[Any] = []
    clock = FakeClock()
    sampler = Sampler(Looks(pid=os.getpid()), rows.append, clock=clock, began_s=0)
    for _ in range(6):
        sampler.look()
        clock.move(1.0)
    assert ["pss_mb" in row["machine"] for row in rows] == [True, *[False] * 4, True]


def test_a_disk_that_is_full_is_counted():
    def full(row):
        raise OSError(28, "No space left on device")

    sampler = Sampler(Looks(), full, clock=FakeClock(), began_s=0)
    sampler.look()
    assert sampler.trouble == ["sampling: writing a row failed 1 times"]


async def test_it_looks_beside_until_it_is_stopped():
    rows = []
    clock = SystemClock()
    looked = threading.Event()

    def keep(row):
        rows.append(row)
        if len(rows) >= 3:
            looked.set()

    sampler = Sampler(Looks(every_s=0.01), keep, clock=clock, began_s=clock.monotonic_s())
    await sampler.start()
    assert looked.wait(30)
    await sampler.stop()
    n_rows = len(rows)
    assert n_rows == sampler.n_rows
    assert "generator_cpu_share" in rows[-1]["machine"]
    assert sampler.trouble == []
