"""Threads that many owners share: whoever brings much waits for itself."""

from __future__ import annotations

import asyncio
import threading

import pytest

from liveedge.core.errors import QueueFull
from liveedge.service.workers import Workers
from tests.serving import until


class Bench:
    """Two threads, whose work lasts until `go` is set."""

    def __init__(self) -> None:
        self.workers = Workers("test", n_threads=2)
        self.go = threading.Event()
        self.begun: list[str] = []

    def start(self, owner: str, part: str, *, max_waiting: int = 3) -> asyncio.Task[str]:
        def work() -> str:
            self.begun.append(part)
            assert self.go.wait(10)
            return part

        return asyncio.create_task(
            self.workers.run_in_turn(work, owner=owner, part=part, max_waiting=max_waiting)
        )

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, kind: object, error: object, at: object) -> None:
        self.go.set()
        self.workers.close()


async def test_a_part_has_one_piece_at_work_so_that_another_owner_finds_a_thread() -> None:
    async with Bench() as bench:
        many = [bench.start("b", "b1") for _ in range(4)]
        await until(lambda: bench.begun == ["b1"])
        other = bench.start("a", "a1")
        await until(lambda: bench.begun == ["b1", "a1"])
        bench.go.set()
        assert await asyncio.gather(*many, other) == ["b1"] * 4 + ["a1"]


async def test_owners_come_by_turns_whatever_many_of_them_bring() -> None:
    async with Bench() as bench:
        many = [bench.start("b", f"b{i}") for i in range(8)]
        await until(lambda: len(bench.begun) == 2)
        other = bench.start("a", "a1")
        await asyncio.sleep(0)
        bench.go.set()
        await asyncio.gather(*many, other)
        assert bench.begun.index("a1") <= 4


async def test_what_waits_of_one_part_is_bounded() -> None:
    async with Bench() as bench:
        waiting = [bench.start("b", "frames of b1") for _ in range(4)]
        await until(lambda: len(bench.begun) == 1)
        with pytest.raises(QueueFull, match="3 requests for frames of b1"):
            await bench.start("b", "frames of b1")
        bench.go.set()
        await asyncio.gather(*waiting)


async def test_who_gives_up_keeps_nobody_waiting() -> None:
    async with Bench() as bench:
        working, waiting, last = (bench.start("b", "b1") for _ in range(3))
        await until(lambda: bench.begun == ["b1"])
        for left in (working, waiting):
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
        assert bench.begun == ["b1"]  # the work of who left goes on, and nothing beside it
        bench.go.set()
        assert await last == "b1"
        assert bench.begun == ["b1", "b1"]


async def test_work_that_fails_ends_its_turn() -> None:
    async with Bench() as bench:
        bench.go.set()
        with pytest.raises(ZeroDivisionError):
            await bench.workers.run_in_turn(lambda: 1 // 0, owner="b", part="b1")
        assert await bench.start("b", "b1") == "b1"
