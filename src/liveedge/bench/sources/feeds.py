"""Who gives pictures to a stream, by kind of source: the server itself, or a process of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from liveedge.bench.scenario import ScenarioInvalid, Sources
from liveedge.bench.sources.streams import Streams

PACKAGE = "liveedge.bench.sources"
SIM_PUBLISHER = f"{PACKAGE}.publisher"
FILE_PUBLISHER = f"{PACKAGE}.file_publisher"
RTSP_PUBLISHER = f"{PACKAGE}.rtsp_publisher"
WEBRTC_PUBLISHER = f"{PACKAGE}.webrtc_publisher"

Job: TypeAlias = dict[str, Any]


def asked_source(sources: Sources, n: int) -> Mapping[str, Any]:
    """What `POST /streams` is asked for camera `n`."""
    match sources.kind:
        case "sim":
            query = {"seed": sources.seed + n, "fps": f"{sources.fps:g}"}
            size = {"width": sources.width, "height": sources.height}
            return {"type": "sim", "url": f"sim://workcell?{urlencode(query | size)}"}
        case "rtsp":
            return {"type": "rtsp", "url": rtsp_url(sources, n)}
        case "whip" | "livekit":
            return {"type": "livekit"}
        case "push" | "files":
            return {"type": "push"}


def rtsp_url(sources: Sources, n: int) -> str:
    """Where camera `n` is published to, and pulled from. Raises ScenarioInvalid."""
    if not sources.rtsp_url:
        raise ScenarioInvalid(
            "sources.kind is 'rtsp' and sources.rtsp_url is empty: name an RTSP server that takes"
            " publishers, such as rtsp://127.0.0.1:8554/bench-{n}"
        )
    if sources.count > 1 and "{n}" not in sources.rtsp_url:
        raise ScenarioInvalid(
            f"sources.rtsp_url is one place for {sources.count} cameras: put {{n}} into it"
        )
    return sources.rtsp_url.replace("{n}", str(n))


def pictures_job(sources: Sources) -> tuple[str, Job]:
    """Whoever draws: module, and what it is told about its cameras."""
    job: Job = {
        "fps": sources.fps,
        "width": sources.width,
        "height": sources.height,
        "quality": sources.jpeg_quality,
        "seeds": [sources.seed + n for n in range(sources.count)],
    }
    if sources.kind != "files":
        return SIM_PUBLISHER, job
    videos = [sources.files[n % len(sources.files)] for n in range(sources.count)]
    if missing := [video for video in videos if not Path(video).is_file()]:
        raise ScenarioInvalid(f"sources.files: {missing[0]} is no file")
    return FILE_PUBLISHER, job | {"videos": videos}


def publishing(sources: Sources, streams: Streams, ids: Sequence[str]) -> tuple[str, Job] | None:
    """The process that fills these streams: its module and job; None where the server does."""
    reach = {"headers": streams.headers, "is_local": streams.is_local}
    match sources.kind:
        case "sim" | "rtsp":
            return None
        case "push" | "files":
            module, job = pictures_job(sources)
            return module, job | reach | {"urls": [streams.push_url(one) for one in ids]}
        case "whip" | "livekit":
            _, job = pictures_job(sources)
            where = {"server": server_root(streams.base_url), "streams": list(ids)}
            return WEBRTC_PUBLISHER, job | reach | where | {"via": sources.kind}


def rtsp_publishing(sources: Sources) -> tuple[str, Job]:
    """The process that publishes to an RTSP server, before any stream is made."""
    _, job = pictures_job(sources)
    return RTSP_PUBLISHER, job | {"urls": [rtsp_url(sources, n) for n in range(sources.count)]}


def server_root(base_url: str) -> str:
    """Without the version: what clients of the stream routes take."""
    head, _, version = base_url.rstrip("/").rpartition("/")
    return head if version in ("v1", "v1beta") else base_url.rstrip("/")
