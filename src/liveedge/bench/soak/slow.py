"""Readers that take nothing, or next to nothing: of the events of a watch, and of the preview."""

from __future__ import annotations

import threading
from collections.abc import Callable

from liveedge.bench.soak import raw
from liveedge.bench.soak.place import Act, Place
from liveedge.bench.soak.watching import Watched
from liveedge.core.tasks import OwnedThread

RECEIVE_BYTES = 4096
TRICKLE_BYTES = 64
TRICKLE_S = 1.0  # real time
AT_ONCE = 8
WAYS = ("preview unread", "events unread", "preview trickle", "events trickle")


def read_slowly_on(place: Place, watched: Watched) -> None:
    """One more reader at each moment; each stays a while."""
    room = threading.BoundedSemaphore(AT_ONCE)
    readers: list[OwnedThread] = []
    for number in place.ticks("slow", place.options.slow_every_s):
        readers = [reader for reader in readers if reader.alive]
        way = WAYS[number % len(WAYS)]
        path = _path(place, watched, number, way)
        if path is None or not room.acquire(blocking=False):
            place.log.write("skipped", part="slow", number=number)
            continue
        reader = OwnedThread("soak-slow", _reader(place, room, number, way, path))
        reader.start()
        readers.append(reader)
    for reader in readers:
        reader.stop(raw.TIMEOUT_S)


def _path(place: Place, watched: Watched, number: int, way: str) -> str | None:
    if way.startswith("events"):
        watch = watched.any()
        return None if watch is None else f"/v1beta/watches/{watch}/events"
    camera = place.fleet.camera(number)
    return None if camera is None else f"/v1beta/streams/{camera.stream_id}/preview.mjpeg?fps=5"


def _reader(
    place: Place, room: threading.BoundedSemaphore, number: int, way: str, path: str
) -> Callable[[threading.Event], None]:
    def read(_stopping: threading.Event) -> None:
        _read(place, room, number, way, path)

    return read


def _read(place: Place, room: threading.BoundedSemaphore, number: int, way: str, path: str) -> None:
    act = Act(place, "slow", number, way=way)
    try:
        with raw.connect(place.url, receive_bytes=RECEIVE_BYTES) as connection:
            connection.sendall(raw.request(place.url, "GET", path))
            heard = connection.recv(1024)
            n_bytes, cut = len(heard), False
            end_s = place.now_s + place.options.slow_for_s
            while place.now_s < end_s and not cut and _rest(place):
                if way.endswith("trickle"):
                    piece = connection.recv(TRICKLE_BYTES)
                    n_bytes, cut = n_bytes + len(piece), not piece
        status = raw.status_of(heard)
        act.done(ok=status in (200, 404), status=status, bytes=n_bytes, cut=cut)
    except TimeoutError:
        act.done(ok=True, cut=False, silent=True)  # a still scene has no events
    except ConnectionResetError:  # the server's way to end a reader that takes nothing
        act.done(ok=True, cut=True)
    except OSError as error:
        act.done(ok=False, status=0, error=repr(error)[:200])
    finally:
        room.release()


def _rest(place: Place) -> bool:
    return not place.real_clock.wait(place.stopping, TRICKLE_S)
