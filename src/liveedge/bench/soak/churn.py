"""Cameras that come, go, fall silent and flap, each on a schedule of its own.

A camera counts as back when a newer frame than before has come and the server calls it live; how
long that takes after the cause has ended is told in stream time.
"""

from __future__ import annotations

from typing import Any

from liveedge.bench.soak.asking import refused
from liveedge.bench.soak.place import Act, Place
from liveedge.client.http import Client, Refused

BACK_WITHIN_S = 90.0  # stream time: supervisors wait up to half a minute between two attempts
BACK_REAL_S = 30.0  # and at least this much real time: processes start, connections are made
LOOK_S = 0.5
FLAP_S = (0.2, 1.0)  # between two reconnects


def leave_on(place: Place) -> None:
    """One camera after the other leaves for good, and a new one takes its slot."""
    with place.client() as client:
        for number in place.ticks("leave", place.options.leave_every_s):
            slot = number % len(place.fleet)
            with place.fleet.held(slot):
                replace(place, client, number, slot)


def replace(place: Place, client: Client, number: int, slot: int) -> None:
    before = place.fleet.camera(slot)
    act = Act(place, "leave", number, slot=slot, stream=before.stream_id if before else None)
    trouble: dict[str, Any] = {}
    try:
        place.fleet.close(slot, client)
    except Refused as error:  # it was gone already: another one comes all the same
        trouble = refused(error)
    try:
        camera = place.fleet.open(slot, client)
    except Refused as error:
        act.done(ok=False, **refused(error))
        return
    back_s = until_live(place, client, camera.stream_id, -1)
    ok = back_s is not None and not trouble
    act.done(ok=ok, joined=camera.stream_id, kind=camera.kind, live_s=back_s, **trouble)


def lose_on(place: Place) -> None:
    """A publisher falls silent without a good-bye, and goes on after a while."""
    slots = place.fleet.published()
    with place.client() as client:
        for number in place.ticks("loss", place.options.loss_every_s):
            slot = slots[number % len(slots)]
            with place.fleet.held(slot):
                lose(place, client, number, slot)


def lose(place: Place, client: Client, number: int, slot: int) -> None:
    camera, publisher = place.fleet.camera(slot), place.fleet.publisher(slot)
    if camera is None or publisher is None:
        place.log.write("skipped", part="loss", number=number)
        return
    act = Act(place, "loss", number, slot=slot, stream=camera.stream_id, kind=camera.kind)
    publisher.stop()
    try:
        went_on = place.pause(place.options.loss_for_s)
        seen = state(client, camera.stream_id)
    finally:
        publisher.go_on()
    back_s = until_live(place, client, camera.stream_id, seen.get("last_frame_index", -1))
    if went_on or back_s is not None:
        health = seen.get("health")
        act.done(ok=back_s is not None, health=health, back_s=back_s, status=publisher.status)


def flap_on(place: Place) -> None:
    """A publisher is killed and starts again, several times within seconds."""
    slots, chance = place.fleet.published(), place.chance("flap")
    with place.client() as client:
        for number in place.ticks("flap", place.options.flap_every_s):
            slot = slots[(number + 1) % len(slots)]
            pauses_s = [chance.uniform(*FLAP_S) for _ in range(place.options.flaps)]
            with place.fleet.held(slot):
                flap(place, client, number, slot, pauses_s)


def flap(place: Place, client: Client, number: int, slot: int, pauses_s: list[float]) -> None:
    camera = place.fleet.camera(slot)
    if camera is None:
        place.log.write("skipped", part="flap", number=number)
        return
    act = Act(place, "flap", number, slot=slot, stream=camera.stream_id, kind=camera.kind)
    for pause_s in pauses_s:
        if (publisher := place.fleet.publisher(slot)) is not None:
            publisher.kill()
        place.fleet.publish(slot)
        # Real time: a process takes about as long as this to start and connect.
        if place.real_clock.wait(place.stopping, pause_s):
            break
    seen = state(client, camera.stream_id)
    back_s = until_live(place, client, camera.stream_id, seen.get("last_frame_index", -1))
    if back_s is not None or not place.stopping.is_set():
        act.done(ok=back_s is not None, back_s=back_s)


def state(client: Client, stream_id: str) -> dict[str, Any]:
    """Empty where the server does not tell."""
    try:
        return client.stream(stream_id)
    except Refused:
        return {}


def until_live(
    place: Place, client: Client, stream_id: str, after_index: int | None
) -> float | None:
    """Stream seconds until the camera is back; None where it is not in time."""
    began_s = place.now_s
    limit_s = max(BACK_WITHIN_S, BACK_REAL_S * place.options.speed)
    after = -1 if after_index is None else after_index
    while place.now_s - began_s < limit_s:
        seen = state(client, stream_id)
        newest = seen.get("last_frame_index")
        if seen.get("health") == "live" and newest is not None and newest > after:
            return round(place.now_s - began_s, 2)
        if not place.pause(LOOK_S * place.options.speed):
            return None
    return None


def keep_alive_on(place: Place, every_s: float = 100.0) -> None:
    """Leases are five minutes long; whoever looks after a stream renews them."""
    with place.client() as client:
        while place.pause(every_s):
            for camera in place.fleet.cameras():
                try:
                    client.keep_alive(camera.stream_id)
                except Refused as error:
                    place.log.write("keepalive", stream=camera.stream_id, **refused(error))
