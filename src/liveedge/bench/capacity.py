"""What a rate sweep says of the most that a server can take. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from liveedge.bench.result import StepSummary

SUSTAINED_SHARE = 0.95  # of the offered rate that must be achieved
LOST_SHARE = 0.01  # of the requests that may end without an answer
GOOD_SHARE = 0.95
UNSTEADY = "not steady"  # how the warning of a step begins whose queue grew


def capacity(steps: Sequence[StepSummary]) -> dict[str, float]:
    """As `definitions.CAPACITY` says, in requests per second. Invalid steps count for nothing."""
    valid = [step for step in steps if not step.invalid]
    found: dict[str, float] = {}
    if valid:
        found["peak_achieved_per_s"] = max(step.achieved_per_s for step in valid)
        found["peak_goodput_per_s"] = max(step.goodput_per_s for step in valid)
    sweep = sorted(
        ((step.offered_per_s, step) for step in valid if step.offered_per_s), key=lambda one: one[0]
    )
    kept = [(rate, is_sustained(step)) for rate, step in sweep]
    _add(found, kept, "sustained_per_s", "saturated_per_s")
    _add(
        found,
        [(rate, (step.good.share or 0) >= GOOD_SHARE) for rate, step in sweep],
        "within_slo_per_s",
    )
    return found


def is_sustained(step: StepSummary) -> bool:
    """The server kept up: what was offered was achieved, hardly anything was lost, no queue grew."""
    offered = min(
        step.offered_per_s or 0.0, step.sent / step.seconds
    )  # chance offers less at times
    lost = step.sent - step.outcomes["ok"]
    return (
        step.sent > 0
        and step.achieved_per_s >= SUSTAINED_SHARE * offered
        and lost <= LOST_SHARE * step.sent
        and not any(warning.startswith(UNSTEADY) for warning in step.warnings)
    )


def _add(
    found: dict[str, float], kept: Sequence[tuple[float, bool]], best: str, first: str = ""
) -> None:
    """The last rate before the first that is not kept, and that one."""
    for rate, is_kept in kept:
        if not is_kept:
            if first:
                found[first] = rate
            return
        found[best] = rate
