"""Logs of soaks as they would be, with a leak or a fault where a test wants one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from liveedge.bench.soak.log import Line
from liveedge.bench.soak.options import SoakOptions

EVERY_S = 10.0
READY_S = 5.0
STREAMS = 5
KILLS_S = (600.0, 1200.0, 1800.0, 5400.0)


@dataclass
class Script:
    """A soak of two hours in which nothing happens but what is set here."""

    hours: float = 2.0
    speed: float = 1.0
    seed: int = 1
    server_mb_per_h: float = 0.0
    load_per_h: float = 0.0
    engine_mb_per_h: float = 0.0
    fds_per_h: float = 0.0
    age_ms_per_h: float = 0.0
    wrong_share: float = 0.01
    n_restarts: int = len(KILLS_S)
    extra: list[Line] = field(default_factory=list)
    is_over: bool = True

    @property
    def options(self) -> SoakOptions:
        return SoakOptions(hours=self.hours, speed=self.speed)

    def lines(self) -> list[Line]:
        """In the order of time."""
        end_s = self.hours * 3600
        lines: list[Line] = [
            {"what": "soak", "at_s": 0.0, "options": self.options.as_json(), "environment": {}},
            {"what": "segment", "at_s": 0.0, "number": 1},
            {"what": "ready", "at_s": READY_S, "streams": []},
            *self._kills(),
            *self._churn(),
            *self._asks(end_s),
            *self._looks(end_s),
            *self.extra,
        ]
        if self.is_over:
            lines.append({"what": "end", "at_s": end_s, "number": 1, "reason": "done"})
        return sorted(lines, key=lambda line: float(line["at_s"]))

    def _kills(self) -> list[Line]:
        lines: list[Line] = []
        for number, at_s in enumerate(KILLS_S):
            lines += act("kill", number, at_s, at_s + 2, recovered_real_s=1.5)
        return lines

    def _churn(self) -> list[Line]:
        return [
            *act("loss", 1, 900.0, 925.0, back_s=1.0, health="stalled"),
            *act("flap", 1, 1000.0, 1010.0, back_s=2.0),
            *act("leave", 1, 1100.0, 1102.0, stream="s0", joined="s9"),
            *act("watch", 1, 100.0, 300.0, ended="deleted", events={"result": 9}),
            *act("hostile", 1, 200.0, 200.5, status=400),
            *act("slow", 1, 200.0, 290.0, status=200),
        ]

    def _asks(self, end_s: float) -> list[Line]:
        chance = random.Random(self.seed)
        return [
            {
                "what": "ask",
                "at_s": at_s + 0.3,
                "begun_s": at_s,
                "number": number,
                "kind": "lamp",
                "stream": "s1",
                "status": 200,
                "ttft_ms": 80 + chance.gauss(0, 6),
                "right": chance.random() >= self.wrong_share,
            }
            for number, at_s in enumerate(_times(end_s, 6.0))
        ]

    def _looks(self, end_s: float) -> list[Line]:
        chance = random.Random(self.seed + 1)
        slow = 0.0
        looks: list[Line] = []
        for at_s in _times(end_s, EVERY_S):
            slow = 0.9 * slow + chance.gauss(0, 0.3)  # neighbours resemble each other
            hours = at_s / 3600
            life = sum(at_s >= kill_s for kill_s in KILLS_S)
            looks.append(
                {
                    "what": "look",
                    "at_s": at_s,
                    "machine": {"load": 1.0 + self.load_per_h * hours},
                    "processes": {
                        "server": [
                            process(1, 250 + slow + self.server_mb_per_h * hours)
                            | {"fds": 45 + chance.choice((-2, 0, 2)) + self.fds_per_h * hours}
                        ],
                        # Another level in each life: that is no growth.
                        "engine": [
                            process(
                                10 + life,
                                500 + 7 * (life % 3) + slow / 2 + self.engine_mb_per_h * hours,
                            )
                        ],
                        "others": [],
                    },
                    "gauges": {
                        "liveedge_streams": 5.0,
                        "liveedge_encoder_cache_bytes": min(at_s / 60, 64.0) * (1 << 20),
                        "liveedge_encoder_cache_capacity_bytes": 64.0 * (1 << 20),
                    },
                    "totals": {"liveedge_engine_restarts_total": min(life, self.n_restarts)},
                    "streams": [
                        view(300 + chance.gauss(0, 40) + self.age_ms_per_h * hours)
                        for _ in range(STREAMS)
                    ],
                }
            )
        looks[-1]["totals"]["liveedge_engine_restarts_total"] = self.n_restarts
        if self.is_over:
            looks.append({"what": "rest", "at_s": end_s, "gauges": {"liveedge_watches": 0.0}})
        return looks


def act(name: str, number: int, begun_s: float, done_s: float, **fields: Any) -> list[Line]:
    """Its two lines; `ok` unless that is said otherwise."""
    told: Mapping[str, Any] = {"ok": True, **fields}
    return [
        {"what": "begin", "at_s": begun_s, "act": name, "number": number, **fields},
        {"what": "done", "at_s": done_s, "act": name, "number": number, **told},
    ]


def process(pid: int, anon_mb: float) -> dict[str, Any]:
    return {
        "pid": pid,
        "born": pid,
        "rss_mb": anon_mb + 250,
        "anon_mb": anon_mb,
        "fds": 6,
        "threads": 8,
        "cpu_s": 1.0,
    }


def view(age_ms: float) -> dict[str, Any]:
    return {"id": "s1", "kind": "sim", "health": "live", "age_ms": age_ms, "adds_up": True}


def _times(end_s: float, every_s: float) -> list[float]:
    return [READY_S + number * every_s for number in range(int((end_s - READY_S) / every_s))]


Change = Callable[[Script], None]
