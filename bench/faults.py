"""Everything that goes wrong with cameras, again and again, and what a viewer saw of it.

    python bench/faults.py --repeat 5 --only rtsp.cut,whip.loss5

Real cameras (a GStreamer RTSP server, WebRTC publishers) show numbered pictures to a real server; a
proxy or the camera itself does the damage. Every frame that came is compared with the picture that
its number promises. *Recovery* is from the end of the cause to the first clean frame behind which
nothing is wrong; *lost* are pictures that the camera sent and that never became frames; *shown
clean* are frames with any damage that the server does not call corrupt: there must be none.
Descriptors and threads are the server's, before the first and after the last repetition.

The Markdown table is the one in `docs/operations.md`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cameras.footage import Footages, Shape
from cameras.publisher import Publisher
from cameras.rig import Held, Rig
from cameras.rtsp_faults import RTSP_FAULTS, Fault, Scene
from cameras.scene import Failed, Outcome, Stage
from cameras.webrtc_faults import LIVEKIT_FAULTS, WHIP_FAULTS
from liveedge.client.http import Refused
from machine import announce
from report import finish, percentile, table

KINDS: Mapping[str, Mapping[str, tuple[str, Fault]]] = {
    "rtsp": RTSP_FAULTS,
    "whip": WHIP_FAULTS,
    "livekit": LIVEKIT_FAULTS,
}
QUICK = ("rtsp.cut", "rtsp.password", "whip.loss5")
COLUMNS = (
    "source",
    "fault",
    "times",
    "recovery s p50 / max",
    "lost p50 / max",
    "flagged",
    "shown clean",
    "descriptors",
    "threads",
    "what else",
)


@dataclass(slots=True, kw_only=True)
class Tried:
    """One fault, all its repetitions."""

    kind: str
    text: str
    before: Held
    after: Held
    outcomes: list[Outcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def row(self) -> list[object]:
        recover_s = [o.recover_s for o in self.outcomes if o.recover_s == o.recover_s]
        lost = [float(o.lost) for o in self.outcomes]
        notes = [o.note for o in self.outcomes if o.note]
        unseen = sum(o.unseen for o in self.outcomes)
        if unseen:
            notes.append(f"{unseen} frames gone before they were looked at")
        if self.failures:
            notes.append(f"FAILED {len(self.failures)} times: {self.failures[0]}")
        return [
            self.kind,
            self.text,
            len(self.outcomes) + len(self.failures),
            _pair(recover_s, ".2f"),
            _pair(lost, ".0f") if recover_s else "-",
            sum(o.flagged for o in self.outcomes),
            sum(o.shown_clean for o in self.outcomes),
            f"{self.before.fds} → {self.after.fds}",
            f"{self.before.threads} → {self.after.threads}",
            "; ".join(notes[-1:] + notes[:-1][-1:])
            if self.failures or unseen
            else notes[-1]
            if notes
            else "",
        ]


def _pair(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    return f"{percentile(values, 50):{form}} / {max(values):{form}}"


def main() -> int:
    known = [f"{kind}.{name}" for kind, faults in KINDS.items() for name in faults]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="times that each fault happens")
    parser.add_argument("--only", help=f"comma-separated, or a kind: {', '.join(known)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few, once, to see that it works")
    options = parser.parse_args()
    chosen = (
        _chosen(options.only, known) if options.only else list(QUICK if options.quick else known)
    )
    if not chosen or options.repeat < 1:
        parser.error(f"--only knows {', '.join(known)}; --repeat needs at least 1")
    announce()
    with tempfile.TemporaryDirectory() as folder, Rig() as rig:
        stage = Stage(rig, Footages(Path(folder)))
        _warm_up(stage, chosen)
        tried = [_try(stage, name, options) for name in chosen]
    return tell(tried)


def _chosen(only: str, known: Sequence[str]) -> list[str]:
    words = only.split(",")
    return [name for name in known if name in words or name.partition(".")[0] in words]


def _warm_up(stage: Stage, chosen: Sequence[str]) -> None:
    """What the first stream of a kind starts for good is no leak of a fault."""
    stage.rig.delete(stage.rig.client.create_stream({"type": "push"})["id"])
    footage = stage.make_footage(Shape())
    if any(not name.startswith("rtsp.") for name in chosen):
        shot = stage.shoot({"type": "whip"}, footage)
        assert shot.publish is not None
        with Publisher("whip", shot.publish, footage):
            shot.until(lambda stream: stream["health"] == "live", "live")
        stage.clear()


def _try(stage: Stage, name: str, options: argparse.Namespace) -> Tried:
    kind, _, short = name.partition(".")
    text, fault = KINDS[kind][short]
    before = stage.rig.held()
    tried = Tried(kind=kind, text=text, before=before, after=before)
    for number in range(1 if options.quick else options.repeat):
        chance = random.Random(f"{options.seed} {name} {number}")
        begun_s = time.monotonic()
        try:
            outcome = fault(Scene(stage=stage, chance=chance, quick=options.quick))
            tried.outcomes.append(outcome)
            print(
                f"{name} {number + 1}: {outcome} in {time.monotonic() - begun_s:.1f} s", flush=True
            )
        except (Failed, Refused) as error:
            tried.failures.append(str(error))
            print(f"{name} {number + 1}: FAILED {error}", flush=True)
        stage.clear()
    tried.after = stage.rig.held()
    return tried


def tell(tried: Sequence[Tried]) -> int:
    print()
    rows = [one.row() for one in tried]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print()
    table(COLUMNS[:-1], [row[:-1] for row in rows])
    figures = {
        "faults": len(tried),
        "times": sum(len(one.outcomes) + len(one.failures) for one in tried),
        "failed": sum(len(one.failures) for one in tried),
        "shown_clean": sum(o.shown_clean for one in tried for o in one.outcomes),
        "fds_grown": max(one.after.fds - one.before.fds for one in tried),
        "threads_grown": max(one.after.threads - one.before.threads for one in tried),
    }
    finish(figures)
    return 1 if figures["failed"] or figures["shown_clean"] else 0


if __name__ == "__main__":
    sys.exit(main())
