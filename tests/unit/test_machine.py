"""How much memory there is: the machine's, or what the groups around this process allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from liveedge.core.machine import memory_ceiling_bytes, physical_bytes, resident_bytes

MIB = 1 << 20


def groups(folder: Path, own: str, limits: dict[str, str]) -> tuple[Path, Path]:
    """A tree of control groups and the file that says where this process is in it."""
    root = folder / "cgroup"
    root.mkdir()
    for name, text in limits.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    place = folder / "own"
    place.write_text(own)
    return root, place


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": f"{512 * MIB}\n"}, 512 * MIB),
        ("0::/\n", {"memory.max": "max\n"}, None),
        (
            "0::/a/b\n",
            {"a/b/memory.max": f"{900 * MIB}", "a/memory.max": f"{700 * MIB}"},
            700 * MIB,
        ),
        ("0::/a/b\n", {"a/b/memory.max": f"{600 * MIB}", "a/memory.max": "max"}, 600 * MIB),
        # The path is the host's; what is mounted is the container's own group.
        ("0::/host/path\n", {"memory.max": f"{300 * MIB}"}, 300 * MIB),
        (
            "9:name=systemd:/\n4:cpu,memory:/box\n0::/\n",
            {"memory/box/memory.limit_in_bytes": f"{400 * MIB}"},
            400 * MIB,
        ),
        ("4:memory:/box\n", {"memory/memory.limit_in_bytes": f"{200 * MIB}"}, 200 * MIB),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("nonsense\n", {"memory.max": "garbage"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_the_tightest_limit_around_the_process_counts(
    tmp_path: Path, own: str, limits: dict[str, str], expected: int | None
):
    root, place = groups(tmp_path, own, limits)
    assert memory_ceiling_bytes(cgroups=root, own=place) == (expected or physical_bytes())


def test_without_control_groups_the_machine_is_the_ceiling(tmp_path: Path):
    nowhere = tmp_path / "none"
    assert memory_ceiling_bytes(cgroups=nowhere, own=nowhere) == physical_bytes()


def test_this_machine_has_memory_and_this_process_a_part_of_it():
    resident = resident_bytes()
    assert resident is not None
    assert MIB < resident < physical_bytes()
    assert resident_bytes(os.getpid()) == pytest.approx(resident, rel=0.2)


def test_a_process_that_is_gone_has_no_memory(tmp_path: Path):
    assert resident_bytes(1, processes=tmp_path) is None
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "statm").write_text("broken")
    assert resident_bytes(1, processes=tmp_path) is None
