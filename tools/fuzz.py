"""Feeds one parser of strangers' bytes with inputs that were good once, and watches it.

    PYTHONPATH=src python tools/fuzz.py refs --n 1000000 --seed 1
    PYTHONPATH=src python tools/fuzz.py --list

Every input is an example (`fuzz_targets.py`) that was changed a few times: bits, pieces left out,
repeated, exchanged with another example's, words of the format, noise. Promised is that a target
raises nothing but its declared errors, keeps its own promises (what is written reads back), takes
less than 100 ms of processor time for each input, and that memory does not grow. A broken promise
is written to a file and the status is 1. The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz_targets import TARGETS, Target

SLOW_S = 0.1  # of processor time
MAX_INPUT_BYTES = 20_000
SAMPLE_EVERY = 10_000  # inputs between two looks at the memory
WARM_UP_SHARE = 0.1  # of a run: caches fill, the allocator takes what it will keep
MAX_GROWTH_MB = 24.0  # after that; an allocator's own steps are a few MB
MAX_KEPT = 20  # broken promises


@dataclass
class Tally:
    """What a run has shown."""

    n: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    rss_mb: list[float] = field(default_factory=list)

    @property
    def growth_mb(self) -> float:
        settled = self.rss_mb[int(len(self.rss_mb) * WARM_UP_SHARE) :]
        return max(settled) - settled[0] if settled else 0.0

    @property
    def is_good(self) -> bool:
        return not self.broken and self.growth_mb <= MAX_GROWTH_MB


class Mutator:
    """Makes inputs of examples. The same chance makes the same inputs."""

    def __init__(self, target: Target, chance: random.Random) -> None:
        self._corpus = target.corpus
        self._words = target.words
        self._chance = chance
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._set,
            self._drop,
            self._repeat,
            self._put_word,
            self._put_word,
            self._put_noise,
            self._splice,
            self._cut,
        )

    def __call__(self) -> bytes:
        chance = self._chance
        data = bytearray(chance.choice(self._corpus))
        for _ in range(1 + int(chance.random() ** 4 * 8)):
            if not data:
                data += chance.randbytes(4)
            chance.choice(self._changes)(data)
        return bytes(data[:MAX_INPUT_BYTES])

    def _place(self, data: bytearray) -> int:
        return int(self._chance.random() * len(data))

    def _span(self, data: bytearray) -> slice:
        at = self._place(data)
        return slice(at, at + 1 + int(self._chance.random() ** 3 * 64))

    def _flip(self, data: bytearray) -> None:
        data[self._place(data)] ^= 1 << int(self._chance.random() * 8)

    def _set(self, data: bytearray) -> None:
        data[self._place(data)] = self._chance.choice(b'\x00\x01\x7f\x80\xff \n\r%&=?/:;,-+"\\')

    def _drop(self, data: bytearray) -> None:
        del data[self._span(data)]

    def _repeat(self, data: bytearray) -> None:
        span = self._span(data)
        n_times = self._chance.choice((1, 1, 1, 2, 5, 40))
        data[span.start : span.start] = bytes(data[span]) * n_times

    def _put_word(self, data: bytearray) -> None:
        at = self._place(data)
        word = self._chance.choice(self._words)
        replaced = len(word) if self._chance.random() < 0.5 else 0
        data[at : at + replaced] = word

    def _put_noise(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = self._chance.randbytes(1 + int(self._chance.random() ** 2 * 16))

    def _splice(self, data: bytearray) -> None:
        other = self._chance.choice(self._corpus)
        at = self._place(data)
        data[at:] = other[int(self._chance.random() * len(other)) :]

    def _cut(self, data: bytearray) -> None:
        del data[self._place(data) :]


def run(
    target: Target, *, n: int, seed: int, on_broken: Callable[[bytes], None] = lambda _: None
) -> Tally:
    """Feed `n` inputs; the examples themselves come first."""
    make = Mutator(target, random.Random(f"{target.name} {seed}"))
    tally = Tally()
    for i in range(n):
        data = target.corpus[i] if i < len(target.corpus) else make()
        _feed(target, data, tally, on_broken)
        if i % SAMPLE_EVERY == 0:
            tally.rss_mb.append(_rss_mb())
        if len(tally.broken) >= MAX_KEPT:
            break
    return tally


def _feed(target: Target, data: bytes, tally: Tally, on_broken: Callable[[bytes], None]) -> None:
    begun_s = time.thread_time()
    trouble = ""
    try:
        target.check(data)
        tally.accepted += 1
    except target.declared as error:
        tally.refused[type(error).__name__] += 1
    except Exception as error:  # noqa: BLE001  to find these is what it is for
        trouble = f"{type(error).__name__}: {str(error)[:200]}"
    spent_s = time.thread_time() - begun_s
    tally.n += 1
    tally.slowest_s = max(tally.slowest_s, spent_s)
    if not trouble and spent_s > SLOW_S:
        trouble = f"took {spent_s * 1000:.0f} ms"
    if trouble:
        tally.broken.append(trouble)
        on_broken(data)


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def _keep(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(prefix="fuzz-", suffix=".bin", delete=False) as kept:
        kept.write(data)
    print(f"a broken promise, kept in {kept.name}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Feed a parser with inputs that were good once.")
    parser.add_argument("target", nargs="?", choices=sorted(TARGETS))
    parser.add_argument("--n", type=int, default=100_000, help="inputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="say what can be fed, and end")
    asked = parser.parse_args(arguments)
    if asked.list or asked.target is None:
        for name in sorted(TARGETS):
            print(f"{name:10s} {TARGETS[name]().what}")
        return 0
    target = TARGETS[asked.target]()
    begun_s = time.perf_counter()
    tally = run(target, n=asked.n, seed=asked.seed, on_broken=_keep)
    spent_s = time.perf_counter() - begun_s
    for trouble in tally.broken:
        print(trouble)
    print(
        json.dumps(
            {
                "target": target.name,
                "inputs": tally.n,
                "seed": asked.seed,
                "accepted": tally.accepted,
                "refused": dict(tally.refused.most_common()),
                "broken": len(tally.broken),
                "slowest_ms": round(tally.slowest_s * 1000, 2),
                "rss_mb": round(tally.rss_mb[-1], 1),
                "rss_growth_mb": round(tally.growth_mb, 1),
                "inputs_per_s": round(tally.n / spent_s),
            }
        )
    )
    return 0 if tally.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
