"""The command line: parse, call, print. One function per command, no decisions of its own.

Flags of `serve` and `config show` are made from the settings model, so that a new setting has its
flag, its help and its default at once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import threading
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from liveedge.cli_bench.commands import add_bench, add_soak
from liveedge.cli_keys import add_keys
from liveedge.client.http import Answer, Client, Refused, image_part, video_part
from liveedge.core.clock import SystemClock
from liveedge.core.errors import LiveEdgeError, SettingsInvalid
from liveedge.core.tasks import OwnedThread
from liveedge.core.version import VERSION
from liveedge.demo.run import DEFAULT_SEED, DemoOptions, run
from liveedge.engine.process.spawn import Nursery
from liveedge.settings import Loaded, Settings, load

DEFAULT_URL = "http://127.0.0.1:8000"
STDIN = 0
INTERRUPTED = 130  # what shells say of a program ended by Ctrl-C
# What the value of a flag is called in the help; units come from the name.
METAVARS = {
    "host": "ADDRESS",
    "api_key": "KEY",
    "cors_origins": "ORIGIN",
    "region": "NAME",
    "regions": "NAME",
    "model_id": "ID",
    "aliases": "ALIAS=ID",
    "memory": "SIZE",
    "verify_warm": "SHARE",
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "tls_key_password_file": "FILE",
    "otlp_endpoint": "URL",
    "otlp_sample": "SHARE",
    "public_url": "URL",
    "udp_ports": "PORTS",
    "announced_ip": "ADDRESS",
    "ice_servers": "URL",
    "livekit": "JSON",
    "providers": "JSON",
    "fallbacks": "JSON",
    "remote_media_ports": "PORT",
    "state_dir": "FOLDER",
    "keys_file": "FILE",
}
ALONE = {"verify_warm": "0.05"}  # what a flag without its value means
WRITTEN_AS_JSON = frozenset({"livekit", "providers", "fallbacks"})
UNITS = {"_mb": "MB", "_ms": "MS", "_s": "SECONDS"}
DURATION_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}


def main(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    nursery: Nursery | None = None,
) -> int:
    """Run one command. A process that waits in `nursery` becomes the engine of a server.

    The exit status is 2 for a wrong command line, 1 for a failure, 130 after Ctrl-C.
    """
    options = build_parser(environment).parse_args(arguments)
    options.environment = environment
    options.nursery = nursery
    try:
        status: int = options.command(options)
        sys.stdout.flush()
    except SettingsInvalid as error:
        print(f"liveedge: {error.message}", file=sys.stderr)
        return 2
    except (LiveEdgeError, Refused) as error:
        print(f"liveedge: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough; nothing may be flushed to it at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def build_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Every command with its flags."""
    parser = argparse.ArgumentParser(prog="liveedge", description="Ask about live cameras.")
    parser.add_argument(
        "--version",
        action="version",
        version=f"liveedge {VERSION}",
        help="print the version and exit",
    )
    commands = _subcommands(parser)

    serve = commands.add_parser(
        "serve",
        help="serve a model and streams over HTTP",
        description="Serve a model and streams over HTTP until Ctrl-C. Every flag is also a"
        " variable (LIVEEDGE_PORT) and a key of the YAML file (port).",
    )
    _add_settings(serve)
    serve.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="stop when standard input ends, so that no server outlives the program that started"
        " it with a pipe",
    )
    serve.set_defaults(command=_serve)

    config = commands.add_parser("config", help="look at settings")
    what = "print the effective settings and where each comes from, secrets masked"
    commands_of_config = _subcommands(config)
    show = commands_of_config.add_parser(
        "show", help=what, description=f"{what[0].upper()}{what[1:]}. Flags are those of serve."
    )
    _add_settings(show)
    show.set_defaults(command=_config_show)
    what = "print the memory that a server with these settings would take, without starting it"
    memory = commands_of_config.add_parser(
        "memory",
        help=what,
        description=f"{what[0].upper()}{what[1:]}: every pool with its size and its reason, and what"
        " would fit where it is too much. Flags are those of serve.",
    )
    _add_settings(memory)
    memory.set_defaults(command=_config_memory)

    ask = commands.add_parser(
        "ask",
        help="ask one question about a stream",
        description="Ask one question about a stream of a running server. The answer goes to"
        " standard output, what it is based on to standard error.",
    )
    _add_ask(ask, environment)
    _add_publish(
        commands.add_parser(
            "publish",
            help="send a camera, a file or the simulated camera to a stream",
            description="Send pictures to a stream of a running server, by LiveKit or WHIP, until"
            " Ctrl-C. The id of a stream that it makes goes to standard output, what happens to"
            " standard error.",
        ),
        environment,
    )
    demo = commands.add_parser(
        "demo",
        help="a server, a simulated camera, checked answers",
        description="Start a server with a simulated camera, ask ten questions and check each"
        " answer against the truth, then keep serving until Ctrl-C.",
    )
    _add_demo(demo)
    _add_sim(commands.add_parser("sim", help="the simulated camera by itself"))

    keys = commands.add_parser("keys", help="make, list and revoke the keys of a server")
    add_keys(_subcommands(keys))
    add_bench(commands)
    add_soak(commands)

    version = commands.add_parser("version", help="print the version")
    version.set_defaults(command=_version)
    return parser


def _subcommands(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """Its commands; without one, the help is printed and the status is 2."""

    def show_help(_options: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    parser.set_defaults(command=show_help)
    return parser.add_subparsers(metavar="COMMAND")


# serve and config show


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=Settings.model_fields["model"].description
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    for name, field in Settings.model_fields.items():
        if name != "model":
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                dest=name,
                help=_help(field).replace("%", "%%"),
                **_argument(name),
            )


def _help(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default in ((), {}):
        return f"{field.description}; may be repeated"
    if default is None:
        return str(field.description)
    if isinstance(default, bool):
        default = "yes" if default else "no"
    if isinstance(default, tuple):
        return f"{field.description}; may be repeated (default: {', '.join(map(str, default))})"
    return f"{field.description} (default: {default})"


@cache
def _kinds() -> Mapping[str, Any]:
    """Types of the settings. Once: it takes longer than everything else of a command together."""
    return typing.get_type_hints(Settings)


def _argument(name: str) -> dict[str, Any]:
    """How argparse reads a setting; values stay texts, the model converts and judges them."""
    kind = _kinds()[name]
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if name in WRITTEN_AS_JSON:
        return {"metavar": METAVARS[name], "type": _json}
    origin = typing.get_origin(kind)
    if origin is tuple:
        return {"action": "append", "metavar": METAVARS[name]}
    if origin is dict:
        return {"action": "append", "metavar": METAVARS[name], "type": _pair}
    if origin is typing.Literal:
        return {"choices": typing.get_args(kind)}
    unit = next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "N")
    optional = {"nargs": "?", "const": ALONE[name]} if name in ALONE else {}
    return {"metavar": METAVARS.get(name, unit), **optional}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not ALIAS=ID")
    return key, value


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:  # without the text: it holds a secret
        raise argparse.ArgumentTypeError(f"this is not JSON: {error}") from error


def _loaded(options: argparse.Namespace) -> Loaded:
    flags: dict[str, object] = {}
    for name in Settings.model_fields:
        value = getattr(options, name)
        pairs = typing.get_origin(_kinds()[name]) is dict
        flags[name] = dict(value) if pairs and value is not None else value
    return load(flags=flags, environment=options.environment, config=options.config)


def _serve(options: argparse.Namespace) -> int:
    loaded = _loaded(options)
    from liveedge.server import serve  # noqa: PLC0415  most of a second; no other command needs it

    if options.until_stdin_closes:
        OwnedThread("liveedge-stdin", _end_with_stdin).start()
    stopped_by = serve(loaded.settings, nursery=options.nursery)
    if stopped_by is None:
        return 1
    sys.stdout.flush()
    sys.stderr.flush()
    # What was served has ended in order. Taking torch apart, or waiting for its import, takes
    # seconds more and gives nobody anything.
    os._exit(INTERRUPTED if stopped_by is signal.SIGINT else 0)


def _end_with_stdin(_stopping: threading.Event) -> None:
    while os.read(STDIN, 4096):  # not sys.stdin: a lock held by this thread would disturb the exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _config_show(options: argparse.Namespace) -> int:
    loaded = _loaded(options)
    for name, value in loaded.shown().items():
        line = f"{name}: {json.dumps(value, ensure_ascii=False)}"  # JSON is YAML
        print(f"{line:40}  # {loaded.origins[name]}")
    return 0


def _config_memory(options: argparse.Namespace) -> int:
    settings = _loaded(options).settings
    from liveedge import assembly  # noqa: PLC0415  most of a second; no client command needs it

    print(assembly.memory_planned(settings).table())
    assembly.memory_plan(settings)  # raises, with what would fit, where this does not
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
    parser.add_argument(
        "--fps",
        type=float,
        default=2.0,
        metavar="N",
        help="frames per second of --last (default: 2)",
    )
    parser.add_argument(
        "--model", metavar="ID", help="id of the model; default: the first that is ready"
    )
    _add_server(parser, environment)
    parser.set_defaults(command=_ask)


def _add_server(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Which server, for everything that looks from outside."""
    parser.add_argument(
        "--url",
        default=environment.get("LIVEEDGE_URL", DEFAULT_URL),
        help=f"address of the server; default: LIVEEDGE_URL, or {DEFAULT_URL}",
    )
    parser.add_argument(
        "--api-key",
        default=environment.get("LIVEEDGE_API_KEY"),
        metavar="KEY",
        help="a key of the server, if it has any; default: LIVEEDGE_API_KEY",
    )


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


# publish


def _add_publish(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="sim (or sim://workcell?seed=3), a video file, or a device such as /dev/video0",
    )
    parser.add_argument(
        "--stream",
        metavar="ID",
        help="a stream that waits for a publisher; default: a new one, deleted at the end",
    )
    _add_server(parser, environment)
    parser.add_argument(
        "--via",
        choices=("livekit", "whip"),
        default="whip",
        help="how it is sent; livekit needs LiveKit's SDK (default: whip)",
    )
    parser.add_argument(
        "--codec",
        choices=("vp8", "h264"),
        default="vp8",
        help="how pictures are compressed (default: vp8)",
    )
    parser.add_argument(
        "--size", type=_size, metavar="WxH", help="width and height; default: the source's own"
    )
    parser.add_argument(
        "--fps", type=_positive, metavar="N", help="frames per second; default: the source's own"
    )
    parser.add_argument(
        "--once", action="store_true", help="end with the file, instead of beginning it again"
    )
    parser.add_argument(
        "--seconds", type=_positive, metavar="N", help="how long; default: until Ctrl-C"
    )
    parser.set_defaults(command=_publish)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _publish(options: argparse.Namespace) -> int:
    try:
        # Needs av and aiortc, which no other command of a client does.
        from liveedge.client.publish import pictures, run as publishing  # noqa: PLC0415
    except ModuleNotFoundError as error:
        message = f"publishing needs the package {error.name}: install liveedge[server]"
        raise Refused(0, "not_installed", message) from error
    with Client(options.url, clock=SystemClock(), api_key=options.api_key) as client:
        try:
            publishing.publish(
                publishing.PublishOptions(
                    source=options.source,
                    stream_id=options.stream,
                    via=options.via,
                    codec=options.codec,
                    wanted=pictures.Wanted(size=options.size, fps=options.fps, once=options.once),
                    seconds=options.seconds,
                    is_local=client.is_local,
                ),
                client,
                clock=SystemClock(),
                rng=random.Random(),
                hear=publishing.Hear(created=_say_id, state=_say_state),
            )
        except publishing.PublishFailed as error:
            raise Refused(0, "publish_failed", str(error)) from error
    return 0


def _say_id(stream_id: str) -> None:
    print(stream_id, flush=True)


def _say_state(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# demo


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once",
        action="store_true",
        help="exit after the questions, with status 0 if 9 of 10 are right",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per question")
    parser.add_argument(
        "--model", metavar="FOLDER", help="a checkpoint folder; default: the shipped model"
    )
    parser.add_argument("--port", type=int, metavar="N", help="port of the server; default: free")
    parser.add_argument(
        "--seed",
        type=int,
        default=DEFAULT_SEED,
        metavar="N",
        help=f"which scene is shown (default: {DEFAULT_SEED})",
    )
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
    what = "write a video of the simulated camera, with its truth as JSON lines"
    record = _subcommands(parser).add_parser(
        "record", help=what, description=f"{what[0].upper()}{what[1:]} beside it."
    )
    record.add_argument(
        "out", type=Path, metavar="OUT", help="file to write: .mp4 (H.264) or .y4m (uncompressed)"
    )
    record.add_argument(
        "--seed", type=int, default=0, metavar="N", help="which scene is shown (default: 0)"
    )
    record.add_argument(
        "--seconds", type=float, default=10.0, metavar="N", help="length (default: 10)"
    )
    record.add_argument(
        "--fps", type=float, default=30.0, metavar="N", help="frames per second (default: 30)"
    )
    record.add_argument(
        "--size",
        type=_size,
        default=(854, 480),
        metavar="WxH",
        help="width and height in pixels (default: 854x480)",
    )
    record.add_argument(
        "--difficulty",
        choices=("easy", "normal", "hard"),
        default="normal",
        help="how strong the noise and the changes of light are (default: normal)",
    )
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
