"""The command line: parse, call, print. One function per command, no decisions of its own.

Flags of `serve` and `config show` are made from the settings model, so that a new setting has its
flag, its help and its default at once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from liveedge.client.http import Answer, Client, Refused, image_part, video_part
from liveedge.core.clock import SystemClock
from liveedge.core.errors import LiveEdgeError, SettingsInvalid
from liveedge.core.version import VERSION
from liveedge.demo.run import DEFAULT_SEED, DemoOptions, run
from liveedge.settings import Loaded, Settings, load

DEFAULT_URL = "http://127.0.0.1:8000"
DURATION_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}


def main(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> int:
    """Run one command; the exit status is 2 for a wrong command line, 1 for a failure."""
    options = build_parser(environment).parse_args(arguments)
    options.environment = environment
    try:
        status: int = options.command(options)
    except SettingsInvalid as error:
        print(f"liveedge: {error.message}", file=sys.stderr)
        return 2
    except (LiveEdgeError, Refused) as error:
        print(f"liveedge: {error}", file=sys.stderr)
        return 1
    return status


def build_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Every command with its flags."""
    parser = argparse.ArgumentParser(prog="liveedge", description="Ask about live cameras.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve a model and streams over HTTP")
    _add_settings(serve)
    serve.set_defaults(command=_serve)

    config = commands.add_parser("config", help="look at settings")
    show = config.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "show", help="print the effective settings and where each comes from, secrets masked"
    )
    _add_settings(show)
    show.set_defaults(command=_config_show)

    _add_ask(commands.add_parser("ask", help="ask one question about a stream"), environment)
    _add_demo(commands.add_parser("demo", help="a server, a simulated camera, checked answers"))
    _add_sim(commands.add_parser("sim", help="the simulated camera by itself"))

    version = commands.add_parser("version", help="print the version")
    version.set_defaults(command=_version)
    return parser


# serve and config show


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=Settings.model_fields["model"].description
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    for name, field in Settings.model_fields.items():
        if name != "model":
            default = field.get_default(call_default_factory=True)
            shown = "" if default in (None, (), {}, False) else f" (default: {default})"
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                dest=name,
                help=f"{field.description or name.replace('_', ' ')}{shown}".replace("%", "%%"),
                **_argument(name),
            )


def _argument(name: str) -> dict[str, Any]:
    """How argparse reads a setting; values stay texts, the model converts and judges them."""
    kind = typing.get_type_hints(Settings)[name]
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    origin = typing.get_origin(kind)
    if origin is tuple:
        return {"action": "append", "metavar": "VALUE"}
    if origin is dict:
        return {"action": "append", "metavar": "KEY=VALUE", "type": _pair}
    choices = typing.get_args(kind) if origin is typing.Literal else None
    optional = origin in (types.UnionType, typing.Union)
    inner = next((a for a in typing.get_args(kind) if a is not type(None)), kind)
    whole_number = (inner if optional else kind) is int
    return {"choices": choices} if choices else {"metavar": "N" if whole_number else "TEXT"}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _loaded(options: argparse.Namespace) -> Loaded:
    flags: dict[str, object] = {}
    for name in Settings.model_fields:
        value = getattr(options, name)
        pairs = typing.get_origin(typing.get_type_hints(Settings)[name]) is dict
        flags[name] = dict(value) if pairs and value is not None else value
    return load(flags=flags, environment=options.environment, config=options.config)


def _serve(options: argparse.Namespace) -> int:
    loaded = _loaded(options)
    from liveedge.server import serve  # noqa: PLC0415  most of a second; no other command needs it

    serve(loaded.settings)
    return 0


def _config_show(options: argparse.Namespace) -> int:
    loaded = _loaded(options)
    for name, value in loaded.shown().items():
        line = f"{name}: {json.dumps(value, ensure_ascii=False)}"  # JSON is YAML
        print(f"{line:40}  # {loaded.origins[name]}")
    return 0


# ask


def _add_ask(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    parser.add_argument("question", help="in plain language")
    parser.add_argument("--stream", required=True, metavar="ID", help="id of the stream")
    parser.add_argument(
        "--last",
        type=_duration_s,
        metavar="TIME",
        help="ask about the last 5s, 500ms or 2m; default: the newest frame alone",
    )
    parser.add_argument("--fps", type=float, default=2.0, help="frames per second of --last")
    parser.add_argument("--model", metavar="ID", help="default: the first that is ready")
    parser.add_argument("--url", default=environment.get("LIVEEDGE_URL", DEFAULT_URL))
    parser.add_argument("--api-key", default=environment.get("LIVEEDGE_API_KEY"), metavar="KEY")
    parser.set_defaults(command=_ask)


def _duration_s(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|)", text)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 5s, 500ms or 2m")
    return float(match[1]) * DURATION_S[match[2]]


def _ask(options: argparse.Namespace) -> int:
    if options.last is None:
        media = image_part(options.stream, frame_index=-1)
    else:
        start_ms = -round(options.last * 1000)
        media = video_part(options.stream, start_offset_ms=start_ms, max_fps=options.fps)
    with Client(options.url, clock=SystemClock(), api_key=options.api_key) as client:
        answer = client.ask(
            [media, {"type": "text", "text": options.question}],
            model=options.model or _ready_model(client),
            max_tokens=512,
            on_text=lambda text: print(text, end="", flush=True),
        )
    print()
    print(_evidence(answer), file=sys.stderr)
    return 0


def _ready_model(client: Client) -> str:
    models: Sequence[Mapping[str, Any]] = client.models()
    for model in models:
        if model["status"] == "ready":
            return str(model["id"])
    raise Refused(0, "model_unavailable", f"none of the server's {len(models)} models is ready")


def _evidence(answer: Answer) -> str:
    frames = [int(frame["frame_index"]) for frame in answer.frames]
    seen = f"frame {frames[0]}" if len(frames) == 1 else f"{len(frames)} frames"
    age_ms = answer.evidence.get("age_ms")
    age = f", newest {age_ms:.0f} ms old" if age_ms is not None else ""
    return f"({seen}{age}; first token {answer.ttft_ms:.0f} ms, all {answer.total_ms:.0f} ms)"


# demo


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once", action="store_true", help="exit after the questions; 0 if 9 of 10 are right"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per question")
    parser.add_argument("--model", metavar="MODEL", help="checkpoint folder; default: the shipped")
    parser.add_argument("--port", type=int, metavar="N", help="default: a free one")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, metavar="N", help="of the scene")
    parser.set_defaults(command=_demo)


def _demo(options: argparse.Namespace) -> int:
    return run(
        DemoOptions(
            once=options.once,
            as_json=options.json,
            model=options.model,
            port=options.port,
            seed=options.seed,
        )
    )


# sim


def _add_sim(parser: argparse.ArgumentParser) -> None:
    record = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "record", help="write a video of the simulated camera, with its truth as JSON lines"
    )
    record.add_argument("out", type=Path, metavar="OUT", help="a .mp4 (H.264) or .y4m file")
    record.add_argument("--seed", type=int, default=0, metavar="N", help="of the scene")
    record.add_argument("--seconds", type=float, default=10.0, metavar="N", help="default: 10")
    record.add_argument("--fps", type=float, default=30.0, metavar="N", help="default: 30")
    record.add_argument(
        "--size", type=_size, default=(854, 480), metavar="WxH", help="default: 854x480"
    )
    record.add_argument("--difficulty", choices=("easy", "normal", "hard"), default="normal")
    record.set_defaults(command=_sim_record)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 854x480")
    return int(match[1]), int(match[2])


def _sim_record(options: argparse.Namespace) -> int:
    from liveedge.media.record import record  # noqa: PLC0415  needs av, which no client has

    done = record(
        options.out,
        seed=options.seed,
        seconds=options.seconds,
        fps=options.fps,
        size=options.size,
        difficulty=options.difficulty,
        progress=_show_frames if sys.stderr.isatty() else None,
    )
    print(f"{done.video}: {done.n_frames} frames; {done.labels}: their truth")
    return 0


def _show_frames(done: int, total: int) -> None:
    if done % 10 == 0 or done == total:
        end = "\n" if done == total else ""
        print(f"\rframe {done} of {total}", end=end, file=sys.stderr, flush=True)


def _version(_options: argparse.Namespace) -> int:
    print(f"liveedge {VERSION}")
    return 0
