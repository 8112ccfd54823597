"""Where a run was made: machine, versions, server, model, command. What cannot be known is null.

Nothing secret is written: values of keys, tokens and passwords are masked, in commands and in URLs.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import platform
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx

from liveedge.bench import processes
from liveedge.bench.answers import decoded
from liveedge.bench.checkpoints import digest
from liveedge.bench.clocks import LOCAL, ClockOffset, combined, measure_clock
from liveedge.bench.documents import told
from liveedge.bench.scenario import Target
from liveedge.core.clock import Clock
from liveedge.core.machine import memory_ceiling_bytes
from liveedge.core.version import VERSION

PACKAGES = ("httpx", "numpy", "pillow", "av", "aiortc", "livekit")
VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF")
HOME = Path(__file__).resolve().parents[1]  # of the package
QUIET_LOOK_S = 1.0
GIT_TIMEOUT_S = 5.0
MAX_FACT = 2000  # characters of one fact, as JSON
MASK = "***"
# What a server may say of its model beside its id.
MODEL_FACTS = ("dtype", "quantization", "precision", "root", "max_model_len", "modalities", "meta")
MODEL_FLAGS = ("--model", "--model-path", "-m")
_SECRET_FLAG = re.compile(r"^-{1,2}[\w-]*(key|token|secret|password|passwd)[\w-]*$", re.IGNORECASE)
_SECRET_PAIR = re.compile(r"(?i)([\w-]*(?:key|token|secret|password|passwd)[\w-]*[=:])[^&\s]+")
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """How this program was started."""

    command: Sequence[str]
    api_key: str = ""  # masked wherever it turns up


async def describe(
    target: Target, http: httpx.AsyncClient, *, started: Started, clock: Clock
) -> dict[str, Any]:
    """`environment.json`. `http` carries the key. Takes about three seconds; never raises for a server
    that does not answer."""
    busy_before = await _busy(clock)
    server, model = await _asked(target, http)
    return {
        "liveedge": VERSION,
        **await asyncio.to_thread(_machine),
        "command": masked(started.command, {started.api_key}),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "began_at_ms": clock.wall_ms(),
        "busy_before": busy_before,
        "server": {**server, "command": _command_of(target.pid, {started.api_key})},
        "model": await asyncio.to_thread(_model, model, target),
        "clock": (await measure_clock(http, target.base_url, clock)).as_json(),
    }


def with_clock_after(before: Mapping[str, Any], after: ClockOffset) -> dict[str, Any]:
    """`environment.json` once the run is over: the clock as both looks allow it."""
    first = ClockOffset.of(before.get("clock") or {})
    return {**before, "clock": combined(first, after).as_json()}


def masked(arguments: Sequence[str], secrets: Collection[str] = ()) -> str:
    """A command line as text, without what would let somebody in, and without whose home it was."""
    shown: list[str] = []
    home = f"{Path.home()}{os.sep}"
    for argument in arguments:
        is_value = bool(shown) and bool(_SECRET_FLAG.match(shown[-1])) and argument[:1] != "-"
        text = MASK if is_value else _SECRET_PAIR.sub(rf"\1{MASK}", argument)
        text = _USER_OF_URL.sub(MASK, text).replace(home, "~/")
        for secret in secrets:
            text = text.replace(secret, MASK) if secret else text
        shown.append(text)
    return " ".join(f'"{text}"' if " " in text or not text else text for text in shown)


def fact(said: Any) -> Any:
    """What a server says of itself, where it is short; None for what would fill the file."""
    try:
        is_short = len(json.dumps(said)) <= MAX_FACT
    except RecursionError:
        return None
    return said if is_short else None


def _machine() -> dict[str, Any]:
    gpus = processes.gpus()
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": {
            "model": _cpu_model(),
            "cores": os.cpu_count(),
            "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "quota": _text(Path("/sys/fs/cgroup/cpu.max")).strip() or None,
        },
        "memory_mb": memory_ceiling_bytes() // _MB,
        "gpus": [asdict(gpu) for gpu in gpus],
        "git_commit": _commit(HOME),
    }


async def _busy(clock: Clock) -> dict[str, Any]:
    """How much of the machine others used before we began."""
    before = processes.machine_ticks()
    await clock.sleep(QUIET_LOOK_S)
    load = os.getloadavg() if hasattr(os, "getloadavg") else (None,)
    return {
        "cpu_share": processes.busy_share(before, processes.machine_ticks()),
        "load_average_1min": load[0],
    }


async def _asked(target: Target, http: httpx.AsyncClient) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the server says of itself and of its model."""
    base = target.base_url.rstrip("/")
    version, headers = await _json(http, f"{base}/version")
    if not version:
        version, headers = await _json(http, str(httpx.URL(base).join("/version")))
    models, _ = await _json(http, f"{base}/models")
    props, _ = await _json(http, str(httpx.URL(base).join("/props")))  # llama.cpp
    data = models.get("data")
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    mine = [entry for entry in entries if target.model in ("", entry.get("id"))]
    server = {
        "base_url": _USER_OF_URL.sub(MASK, target.base_url),
        "name": fact(version.get("name")) or headers.get("server"),
        "version": fact(version.get("version")) or fact(props.get("build_info")),
    }
    model = dict(mine[0]) if mine else {"id": target.model}
    return server, {**model, "model_path": props.get("model_path")}


async def _json(http: httpx.AsyncClient, url: str) -> tuple[dict[str, Any], Mapping[str, str]]:
    """A document and the headers; both empty where there is none."""
    try:
        answer = await told(http, url)
    except httpx.HTTPError:
        return {}, {}
    document = decoded(answer.text) if answer.status == 200 else {}
    return (document if isinstance(document, dict) else {}), answer.headers


def _model(said: Mapping[str, Any], target: Target) -> dict[str, Any]:
    facts = {name: one for name in MODEL_FACTS if (one := fact(said.get(name))) is not None}
    if isinstance(facts.get("root"), str):
        facts["root"] = Path(facts["root"]).name
    found = {"id": fact(said.get("id")), **facts}
    is_local = httpx.URL(target.base_url).host in LOCAL
    places = [said.get("root"), said.get("model_path"), *_flagged(target.pid)]
    places.append(HOME / "assets" / str(said.get("id")).rpartition("/")[2])
    for place in places if is_local else ():
        if isinstance(place, str) and place and (seen := digest(Path(place))) is not None:
            return {**found, **seen}
    return {**found, "digest": fact(said.get("digest"))}


def _flagged(pid: int) -> list[str]:
    """The checkpoint that a local server's command line names."""
    arguments = _arguments(pid)
    pairs = itertools.pairwise(arguments)
    named = [value for flag, value in pairs if flag in MODEL_FLAGS]
    joined = [argument.partition("=") for argument in arguments]
    return named + [value for flag, _, value in joined if flag in MODEL_FLAGS and value]


def _command_of(pid: int, secrets: Collection[str]) -> str | None:
    arguments = _arguments(pid)
    if not arguments:
        return None
    return masked([Path(arguments[0]).name, *arguments[1:]], secrets)


def _arguments(pid: int) -> list[str]:
    return _text(processes.PROC / str(pid) / "cmdline").split("\0")[:-1] if pid else []


def _commit(folder: Path) -> str | None:
    """Of the source tree that this package is run from, `+changes` where it is not as committed."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or _git(folder, "ls-files", "--error-unmatch", __file__) is None:
        return None  # installed, perhaps into somebody else's repository
    return f"{commit}+changes" if _git(folder, "status", "--porcelain", "-uno") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    for line in _text(processes.PROC / "cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
