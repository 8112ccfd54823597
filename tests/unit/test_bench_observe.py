"""What a long run concludes from what it saw."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from observe import memory_mb, share_kb, trend


def test_the_beginning_of_a_run_does_not_count():
    filling = [(float(s), 10.0 * s) for s in range(20)]
    full = [(float(s), 200.0) for s in range(20, 101)]
    assert trend(filling + full).per_min == 0.0
    assert trend(filling + full).is_flat


def test_a_steady_rise_is_a_rise_however_small_its_scatter():
    line = trend([(float(s), 1000.0 + 0.2 * s) for s in range(101)])
    assert math.isclose(line.per_min, 12.0)
    assert not line.is_flat


def test_what_scatters_more_than_it_rises_is_flat():
    assert trend([(float(s), 100.0 + 0.01 * s + 20 * (s % 2)) for s in range(101)]).is_flat


def test_what_falls_is_flat():
    assert trend([(float(s), 1000.0 - s) for s in range(101)]).is_flat


def test_nothing_is_known_of_one_look():
    line = trend([(5.0, 1.0)])
    assert math.isnan(line.per_min)
    assert not line.is_flat


def test_a_server_and_what_is_below_it_are_weighed():
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE):
        found = memory_mb(os.getpid())
    assert found["server"] > 5
    assert found["engine"] > 0


def test_pages_of_files_are_left_out_of_a_share_where_the_system_tells_them_apart() -> None:
    told = "Rss: 99 kB\nPss:  60 kB\nPss_Dirty: 9 kB\nPss_Anon: 20 kB\nPss_File: 37 kB\nPss_Shmem: 3 kB\n"
    assert share_kb(told) == 23
    assert share_kb("Rss: 99 kB\nPss:  60 kB\n") == 60  # not 0, which would count as flat
