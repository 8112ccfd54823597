"""Whether a memory plan fits its budget, and what would fit where it does not. Torch-free, pure.

Suggestions are solved, not guessed: each is a setting with the largest value, rounded down, with
which the whole plan fits. Where no single setting is enough, as few as possible are lowered together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from liveedge.core.errors import SettingsInvalid
from liveedge.engine.interface import EngineSettings
from liveedge.engine.memory.plan import (
    MIB,
    Budget,
    MemoryAsked,
    MemoryPlan,
    ModelFacts,
    human,
    plan_memory,
)

GIB = 1 << 30
EVERYTHING = 1 << 62  # bytes
SHOWN = 3  # suggestions in a message
SCALE_STEPS = 64  # how finely all settings are lowered together


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting that changes the plan; its value in the unit of its flag."""

    flag: str
    lines: tuple[str, ...]  # which it shrinks
    step: int  # values are shown as multiples of it
    least: Callable[[MemoryAsked], int]
    get: Callable[[MemoryAsked, MemoryPlan], int]
    put: Callable[[MemoryAsked, int], MemoryAsked]

    is_switch: bool = False  # one that is written without a value, to turn something off

    def rounded(self, asked: MemoryAsked, value: float) -> int:
        whole = int(value) // self.step * self.step
        return max(self.least(asked), whole)

    def shown(self, value: int) -> tuple[str, str]:
        return self.flag, "" if self.is_switch else str(value)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Flags with values with which the plan fits."""

    values: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return " ".join(f"{flag} {value}".strip() for flag, value in self.values)


def _engine(asked: MemoryAsked, **changes: int) -> MemoryAsked:
    return replace(asked, engine=replace(asked.engine, **changes))  # type: ignore[arg-type]


def _server(asked: MemoryAsked, **changes: int) -> MemoryAsked:
    assert asked.server is not None
    return replace(asked, server=replace(asked.server, **changes))


def _one_stream_mb(asked: MemoryAsked) -> int:
    assert asked.server is not None
    return -(-asked.server.stream_bytes // MIB)


def _history_mb(asked: MemoryAsked, _plan: MemoryPlan) -> int:
    assert asked.server is not None
    return asked.server.history_bytes // MIB


ENGINE_KNOBS = (
    Knob(
        flag="--max-model-len",
        lines=("KV slots",),
        step=256,
        least=lambda _asked: 512,
        get=lambda _asked, plan: plan.sizing.max_model_len,
        put=lambda asked, value: _engine(asked, max_model_len=value),
    ),
    Knob(
        flag="--max-sessions",
        lines=("KV slots", "kept logits"),
        step=1,
        least=lambda _asked: 1,
        get=lambda asked, _plan: asked.engine.n_slots,
        put=lambda asked, value: _engine(asked, n_slots=value),
    ),
    Knob(
        flag="--max-windows",
        lines=("KV slots",),
        step=1,
        least=lambda _asked: 0,
        get=lambda asked, _plan: asked.engine.n_windows,
        put=lambda asked, value: _engine(asked, n_windows=value),
    ),
    Knob(
        flag="--encoder-cache-mb",
        lines=("encoder cache",),
        step=16,
        least=lambda _asked: 16,
        get=lambda asked, _plan: asked.engine.encoder_cache_bytes // MIB,
        put=lambda asked, value: _engine(asked, encoder_cache_bytes=value * MIB),
    ),
    Knob(
        flag="--shared-frames-mb",
        lines=("frames",),
        step=16,
        least=lambda _asked: 32,
        get=lambda asked, _plan: asked.engine.shared_frame_bytes // MIB,
        put=lambda asked, value: _engine(asked, shared_frame_bytes=value * MIB),
    ),
    Knob(
        flag="--no-standby",
        lines=("standby",),
        step=1,
        least=lambda _asked: 0,
        get=lambda asked, _plan: int(asked.has_standby),
        put=lambda asked, value: replace(asked, has_standby=bool(value)),
        is_switch=True,
    ),
)
SERVER_KNOBS = (
    Knob(
        flag="--max-uploads-mb",
        lines=("request bodies",),
        step=16,
        least=lambda _asked: 16,
        get=lambda _asked, plan: plan.bodies_bytes // MIB,
        put=lambda asked, value: _server(asked, bodies_bytes=value * MIB),
    ),
    Knob(
        flag="--max-decoded-mb",
        lines=("decoded uploads",),
        step=32,
        least=lambda _asked: 32,
        get=lambda _asked, plan: plan.decoded_bytes // MIB,
        put=lambda asked, value: _server(asked, decoded_bytes=value * MIB),
    ),
    Knob(
        flag="--history-mb",
        lines=("history",),
        step=16,
        least=lambda _asked: 16,
        get=_history_mb,
        put=lambda asked, value: _server(asked, history_bytes=value * MIB),
    ),
    Knob(
        flag="--streams-mb",
        lines=("history", "hot rings", "cameras"),
        step=16,
        least=_one_stream_mb,  # after history-mb, which it follows when all are lowered
        get=lambda _asked, plan: plan.streams_bytes // MIB,
        put=lambda asked, value: _server(asked, streams_bytes=value * MIB),
    ),
)


def _knobs(asked: MemoryAsked) -> tuple[Knob, ...]:
    return ENGINE_KNOBS if asked.server is None else ENGINE_KNOBS + SERVER_KNOBS


def check_device_memory(settings: EngineSettings, facts: ModelFacts, *, free_bytes: int) -> None:
    """For the process that has the GPU and knows what is free of it; the rest of the plan was judged
    where it was made. Raises SettingsInvalid."""
    asked = MemoryAsked(
        engine=settings,
        server=None,
        budget=Budget(n_bytes=EVERYTHING, how="", most_bytes=0, device_free_bytes=free_bytes),
        device="cuda",
    )
    fitting_plan(asked, facts)


def fitting_plan(asked: MemoryAsked, facts: ModelFacts) -> MemoryPlan:
    """The plan. Raises SettingsInvalid, with what would fit, where it does not."""
    plan = plan_memory(asked, facts)
    if not (plan.fits_host and plan.fits_device):
        raise SettingsInvalid(refusal(asked, facts, plan))
    return plan


def refusal(asked: MemoryAsked, facts: ModelFacts, plan: MemoryPlan) -> str:
    """Why it does not fit and what would."""
    on_device = not plan.fits_device
    places = ("device",) if on_device else ("engine", "server", "shared")
    largest = max((one for one in plan.lines if one.place in places), key=lambda one: one.n_bytes)
    budget, free = plan.budget, plan.budget.device_free_bytes
    if on_device and free is not None:
        what = (
            f"the memory plan needs {human(plan.device_bytes)} of the GPU, {human(free)} are free"
        )
    else:
        what = (
            f"the memory plan needs {human(plan.host_bytes)}, {budget.how} is"
            f" {human(budget.n_bytes)}"
        )
    head = f"{what}; the largest line is {largest.name} with {human(largest.n_bytes)}"
    would_fit = list(single_suggestions(asked, facts, plan))
    if not would_fit:
        would_fit += joint_suggestion(asked, facts, plan)
    would_fit += memory_suggestion(asked, facts, plan)
    if would_fit:
        return f"{head}. What would fit: {' or '.join(map(str, would_fit))}"
    least = plan_memory(_lowered(_knobs(asked), asked, plan, 0.0), facts)
    needed = human(least.device_bytes if on_device else least.host_bytes)
    return f"{head}. The least that this model needs is {needed}, with every pool at its smallest"


def single_suggestions(
    asked: MemoryAsked, facts: ModelFacts, plan: MemoryPlan
) -> Iterator[Suggestion]:
    """Settings of which each alone makes the plan fit; those of the largest lines first."""
    found = 0
    for knob in _by_weight(asked, plan):
        value = _largest_fitting(knob, asked, facts, plan)
        if value is not None:
            yield Suggestion((knob.shown(value),))
            found += 1
            if found == SHOWN:
                return


def _by_weight(asked: MemoryAsked, plan: MemoryPlan) -> list[Knob]:
    sizes = {line.name: line.n_bytes for line in plan.lines}
    return sorted(_knobs(asked), key=lambda knob: -max(sizes.get(name, 0) for name in knob.lines))


def memory_suggestion(
    asked: MemoryAsked, facts: ModelFacts, plan: MemoryPlan
) -> Iterator[Suggestion]:
    """A larger budget, where the machine has it and it is what lacks."""
    if not plan.fits_device:
        return
    most = asked.budget.most_bytes
    # What is left to us grows with the budget, slower than it.
    for tenths in range(10 * plan.host_bytes // GIB, 10 * most // GIB + 1):
        budget = replace(asked.budget, n_bytes=tenths * GIB // 10)
        if _fits(replace(asked, budget=budget), facts):
            yield Suggestion((("--memory", f"{tenths / 10:g}GiB"),))
            return


def joint_suggestion(
    asked: MemoryAsked, facts: ModelFacts, plan: MemoryPlan
) -> Iterator[Suggestion]:
    """As few settings as it takes, those of the largest lines, lowered by one factor."""
    by_weight = _by_weight(asked, plan)
    for n_knobs in range(2, len(by_weight) + 1):
        # In their own order: what a stream takes is lowered before what all streams take.
        knobs = [knob for knob in _knobs(asked) if knob in by_weight[:n_knobs]]
        for step in range(SCALE_STEPS - 1, -1, -1):
            lowered = _lowered(knobs, asked, plan, step / SCALE_STEPS)
            if _fits(lowered, facts):
                yield Suggestion(tuple(_changed(asked, lowered, facts)))
                return


def _lowered(
    knobs: Sequence[Knob], asked: MemoryAsked, plan: MemoryPlan, factor: float
) -> MemoryAsked:
    """These settings at `factor` of what was planned, and never more."""
    for knob in knobs:
        now = knob.get(asked, plan)
        asked = knob.put(asked, min(now, knob.rounded(asked, now * factor)))
    return asked


def _changed(
    asked: MemoryAsked, lowered: MemoryAsked, facts: ModelFacts
) -> Iterator[tuple[str, str]]:
    before, after = plan_memory(asked, facts), plan_memory(lowered, facts)
    for knob in _knobs(asked):
        value = knob.get(lowered, after)
        if value != knob.get(asked, before):
            yield knob.shown(value)


def _largest_fitting(
    knob: Knob, asked: MemoryAsked, facts: ModelFacts, plan: MemoryPlan
) -> int | None:
    """Below the value that was planned. Less of anything never makes a plan larger."""
    values: Sequence[int] = range(knob.least(asked), knob.get(asked, plan))
    if not values or not _fits(knob.put(asked, values[0]), facts):
        return None
    low, high = 0, len(values)  # values[low] fits, values[high] does not
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(knob.put(asked, values[middle]), facts):
            low = middle
        else:
            high = middle
    return knob.rounded(asked, values[low])


def _fits(asked: MemoryAsked, facts: ModelFacts) -> bool:
    try:
        plan = plan_memory(asked, facts)
    except SettingsInvalid:  # a pool too small to work at all
        return False
    return plan.fits_host and plan.fits_device
