"""What is large is given back to the system, whatever was allocated and freed before; and what is free
between blocks in use."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
import sys

import numpy as np

from liveedge.core.machine import LARGE_BYTES, steady_heap


class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]


libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2
if sys.argv[1] == "steady":
    steady_heap()
size = 2 * LARGE_BYTES
np.zeros(size, np.uint8)  # freed at once: from now on glibc would take this size from its heap
before = libc.mallinfo2().hblkhd
upload = np.empty(size, np.uint8)
print(libc.mallinfo2().hblkhd - before >= size)
"""


def lies_apart(how: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    return done.stdout.strip() == "True"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc's malloc")
def test_an_upload_lies_apart_from_the_heap_even_after_another_was_freed() -> None:
    assert not lies_apart("default"), "glibc does this by itself: the setting is not needed"
    assert lies_apart("steady")


HOLES = """
from pathlib import Path

from liveedge.core.machine import give_back_free_memory, steady_heap

PAGE_AND_MORE = 65536


def resident_mb():
    text = Path("/proc/self/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) / 1024


steady_heap()
pieces = [bytearray(PAGE_AND_MORE) for _ in range(2000)]
kept = pieces[::20] + pieces[-1:]  # in between, and at the end, where glibc would look
before = resident_mb()
del pieces
held = resident_mb()
give_back_free_memory()
print(before - held, held - resident_mb(), len(kept))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a call of glibc's malloc")
def test_what_an_upload_left_between_frames_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    by_itself_mb, given_back_mb, _ = map(float, done.stdout.split())
    assert by_itself_mb < 10, "glibc does this by itself: the call is not needed"
    assert given_back_mb > 90
