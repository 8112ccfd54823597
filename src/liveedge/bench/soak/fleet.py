"""The cameras of a soak: how each is opened, who publishes it, and which may be asked about.

Thread  any. Whoever changes a camera holds it with `Fleet.held`; others see it as it was before.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from liveedge.bench.soak.options import SoakOptions
from liveedge.client.http import Client
from liveedge.sim.questions import TEST_SEEDS

Kind: TypeAlias = Literal["sim", "push", "whip"]
PUBLISHERS: Mapping[Kind, str] = {
    "push": "liveedge.bench.soak.push_camera",
    "whip": "liveedge.bench.soak.whip_camera",
}
END_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Camera:
    """A stream, and the scene that it shows."""

    slot: int
    kind: Kind
    stream_id: str
    seed: int


class Publisher:
    """The process that sends what a camera sees. It ends with this one, however that ends."""

    def __init__(self, url: str, camera: Camera, options: SoakOptions) -> None:
        size = f"{options.width}x{options.height}"
        words = (url, camera.stream_id, camera.seed, options.fps, size, options.speed)
        self._process = subprocess.Popen(
            [sys.executable, "-m", PUBLISHERS[camera.kind], *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # Ctrl-C is for this process alone. Not a session: where we are killed while the group is
            # stopped, the system wakes it, and it ends.
            process_group=0,
        )

    @property
    def status(self) -> int | None:
        """Of the process, once it has ended."""
        return self._process.poll()

    def stop(self) -> None:
        """Silence without a good-bye, as of a cable that was pulled."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Ask, then insist."""
        self.go_on()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass(slots=True)
class _Slot:
    kind: Kind
    lock: threading.Lock = field(default_factory=threading.Lock)
    camera: Camera | None = None
    publisher: Publisher | None = None


class Fleet:
    """As many cameras as there are slots; one that leaves makes room for another."""

    def __init__(self, url: str, options: SoakOptions, *, first_seed: int) -> None:
        wanted: Mapping[Kind, int] = {
            "sim": options.sim_streams,
            "push": options.push_streams,
            "whip": options.whip_streams,
        }
        kinds = [kind for kind, n in wanted.items() for _ in range(n)]
        self._url = url
        self._options = options
        self._slots = [_Slot(kind) for kind in kinds]
        self._seeds = itertools.count(TEST_SEEDS.start + first_seed % len(TEST_SEEDS))

    def __len__(self) -> int:
        return len(self._slots)

    def cameras(self) -> list[Camera]:
        """Those that are open now."""
        return [slot.camera for slot in self._slots if slot.camera is not None]

    def camera(self, number: int) -> Camera | None:
        """Of slot `number`, counted around."""
        return self._slots[number % len(self._slots)].camera

    def published(self) -> list[int]:
        """Slots whose cameras have a publisher."""
        return [n for n, slot in enumerate(self._slots) if slot.kind != "sim"]

    @contextlib.contextmanager
    def held(self, slot: int) -> Iterator[None]:
        """Nobody else changes it meanwhile."""
        with self._slots[slot].lock:
            yield

    def open(self, slot: int, client: Client) -> Camera:
        """A new camera in an empty slot. Raises Refused."""
        kind, seed = self._slots[slot].kind, next(self._seeds)
        options = self._options
        url = (
            f"sim://workcell?seed={seed}&fps={options.fps:g}"
            f"&width={options.width}&height={options.height}"
        )
        source = {
            "sim": {"type": "sim", "url": url},
            "push": {"type": "push"},
            "whip": {"type": "whip"},
        }[kind]
        created = client.create_stream(source)
        camera = Camera(slot, kind, str(created["id"]), seed)
        self._slots[slot].camera = camera
        self.publish(slot)
        return camera

    def publish(self, slot: int) -> None:
        """Start the publisher of a camera that has one."""
        place = self._slots[slot]
        assert place.camera is not None
        if place.kind != "sim":
            place.publisher = Publisher(self._url, place.camera, self._options)

    def publisher(self, slot: int) -> Publisher | None:
        return self._slots[slot].publisher

    def close(self, slot: int, client: Client) -> None:
        """The camera leaves: its stream is deleted. Raises Refused."""
        place = self._slots[slot]
        camera, place.camera = place.camera, None
        try:
            if camera is not None:
                client.delete_stream(camera.stream_id)
        finally:
            self.end_publisher(slot)

    def end_publisher(self, slot: int) -> None:
        place = self._slots[slot]
        publisher, place.publisher = place.publisher, None
        if publisher is not None:
            publisher.end()
