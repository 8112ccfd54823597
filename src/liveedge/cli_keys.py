"""`liveedge keys`: make, list and revoke keys in the file that servers watch.

Talks to no server: a running one sees within a second what has changed. A key is printed once, alone on
standard output, so that it can be captured; what is said about it goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from liveedge.core.clock import SystemClock
from liveedge.core.errors import SettingsInvalid
from liveedge.service.caller import DEFAULT_SCOPES, SCOPES, Allowance, Scope
from liveedge.service.key_file import KeyFile, StoredKey, as_scope
from liveedge.service.keys import NewKey, made
from liveedge.settings import load_keys_path

MS_PER = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NAME = re.compile(r"[^\W_][\w .:@+-]{0,63}")
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # becomes a part of cache keys
SCOPES_HELP = (
    "what it opens, separated by commas: ask (questions, watches, warm windows), streams (create, push"
    " into, keep alive and end), view (lists, states, pictures, previews, viewer tokens), metrics;"
    " default: all but metrics"
)


def add_keys(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The three commands."""
    what = "make a key and print it, this once"
    create = commands.add_parser(
        "create",
        help=what,
        description="Make a key and print it. Only a digest is stored: it cannot be shown again. A"
        " running server accepts it within a second.",
    )
    create.add_argument("name", type=_name, metavar="NAME", help="whose key it is, for lists")
    create.add_argument(
        "--owner",
        type=_owner,
        metavar="OWNER",
        help="keys of one owner work on the same streams; default: the key is its own owner",
    )
    create.add_argument(
        "--scopes", type=_scopes, default=DEFAULT_SCOPES, metavar="SCOPES", help=SCOPES_HELP
    )
    usual = "; default: what the server gives to every key"
    create.add_argument(
        "--requests-per-second",
        type=_rate,
        metavar="N",
        help=f"requests per second, pushed frames not counted{usual}",
    )
    create.add_argument(
        "--request-burst",
        type=_count,
        metavar="N",
        help="requests at once; default: those of two seconds",
    )
    create.add_argument(
        "--max-requests", type=_count, metavar="N", help=f"answers in progress{usual}"
    )
    create.add_argument(
        "--max-streams", type=_count, metavar="N", help=f"active streams of its owner{usual}"
    )
    create.add_argument(
        "--expires",
        type=_expires,
        metavar="WHEN",
        help="when it ends: 30d, 12h, 45m or a date such as 2030-01-31 (UTC); default: never",
    )
    create.set_defaults(command=_create)

    what = "list the keys, those that have ended too"
    commands.add_parser("list", help=what, description=f"{what.capitalize()}.").set_defaults(
        command=_list
    )
    revoke = commands.add_parser(
        "revoke",
        help="end a key for ever",
        description="End a key for ever. A running server ends what the key has in progress within a"
        " second; with the last key of an owner its streams end too.",
    )
    revoke.add_argument("id", metavar="ID", help="the part of the key after le_")
    revoke.set_defaults(command=_revoke)
    for parser in commands.choices.values():
        _add_place(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys-file", type=Path, metavar="FILE", help="the file, as the server's --keys-file"
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="FOLDER",
        help="or the folder, as the server's --state-dir",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _create(options: argparse.Namespace) -> int:
    new = NewKey(
        name=options.name,
        owner=options.owner,
        scopes=options.scopes,
        allowance=Allowance(
            requests_per_second=options.requests_per_second,
            request_burst=options.request_burst,
            max_requests=options.max_requests,
            max_streams=options.max_streams,
        ),
        expires_at_ms=options.expires,
    )
    path = _path(options)
    with closing(KeyFile(path, create=True)) as file:
        now_ms = SystemClock().wall_ms()
        key, row = made(new, now_ms=now_ms)
        file.add(row)
    if options.json:
        print(json.dumps({"key": key, **_shown(row, now_ms)}, ensure_ascii=False))
        return 0
    print(key)
    print(f"key {row.id} of {row.name} in {path}: {_described(row)}", file=sys.stderr)
    print("it is not stored and cannot be shown again", file=sys.stderr)
    return 0


def _list(options: argparse.Namespace) -> int:
    with closing(KeyFile(_path(options), create=False)) as file:
        keys = file.keys()
    now_ms = SystemClock().wall_ms()
    if options.json:
        print(json.dumps([_shown(key, now_ms) for key in keys], ensure_ascii=False))
        return 0
    head = ("ID", "STATE", "NAME", "OWNER", "SCOPES", "CREATED", "EXPIRES", "LIMITS")
    for row in _aligned([head, *(_row(key, now_ms) for key in keys)]):
        print(row)
    return 0


def _revoke(options: argparse.Namespace) -> int:
    now_ms = SystemClock().wall_ms()
    with closing(KeyFile(_path(options), create=False)) as file:
        key = file.revoke(options.id, now_ms=now_ms)
    if options.json:
        print(json.dumps(_shown(key, now_ms), ensure_ascii=False))
    else:
        print(f"key {key.id} of {key.name} is revoked")
    return 0


def _path(options: argparse.Namespace) -> Path:
    flags = {"keys_file": options.keys_file, "state_dir": options.state_dir}
    path = load_keys_path(flags=flags, environment=options.environment, config=options.config)
    if path is None:
        raise SettingsInvalid(
            "where are the keys? Give --keys-file FILE or --state-dir FOLDER, as to the server"
        )
    return path


def _shown(key: StoredKey, now_ms: int) -> dict[str, Any]:
    mine = key.allowance
    return {
        "id": key.id,
        "name": key.name,
        "owner": key.owner,
        "state": _state(key, now_ms),
        "scopes": [scope for scope in SCOPES if scope in key.scopes],
        "requests_per_second": mine.requests_per_second,
        "request_burst": mine.request_burst,
        "max_requests": mine.max_requests,
        "max_streams": mine.max_streams,
        "created_at_ms": key.created_at_ms,
        "expires_at_ms": key.expires_at_ms,
        "revoked_at_ms": key.revoked_at_ms,
    }


def _state(key: StoredKey, now_ms: int) -> str:
    if key.revoked_at_ms is not None:
        return "revoked"
    return "active" if key.is_live(now_ms) else "expired"


def _row(key: StoredKey, now_ms: int) -> tuple[str, ...]:
    return (
        key.id,
        _state(key, now_ms),
        key.name,
        key.owner,
        ",".join(scope for scope in SCOPES if scope in key.scopes),
        _date(key.created_at_ms),
        _date(key.expires_at_ms),
        _limits(key.allowance) or "-",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]


def _described(key: StoredKey) -> str:
    scopes = ", ".join(scope for scope in SCOPES if scope in key.scopes)
    until = "" if key.expires_at_ms is None else f"; until {_date(key.expires_at_ms)} UTC"
    limits = _limits(key.allowance)
    return f"{scopes}{until}" + (f"; {limits}" if limits else "")


def _limits(mine: Allowance) -> str:
    known = {
        "requests_per_second": mine.requests_per_second,
        "request_burst": mine.request_burst,
        "max_requests": mine.max_requests,
        "max_streams": mine.max_streams,
    }
    return " ".join(f"{name}={value:g}" for name, value in known.items() if value is not None)


def _date(ms: int | None) -> str:
    return "-" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


# what flags may say


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name: up to 64 letters, digits, spaces and . : @ + - _"
        )
    return text


def _owner(text: str) -> str:
    if _OWNER.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no owner: up to 64 of A-Z a-z 0-9 . - _")
    return text


def _scopes(text: str) -> frozenset[Scope]:
    try:
        return frozenset(as_scope(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**9):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _expires(text: str) -> int:
    """Unix milliseconds."""
    now_ms = SystemClock().wall_ms()
    match = re.fullmatch(r"(\d{1,6})([mhd])", text)
    try:
        if match is not None:
            at_ms = now_ms + int(match[1]) * MS_PER[match[2]]
        else:
            date = datetime.fromisoformat(text)
            at_ms = round((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a time such as 30d, 12h or 45m nor a date such as 2030-01-31"
        ) from None
    if at_ms <= now_ms:
        raise argparse.ArgumentTypeError(f"{text} is over already: the key would open nothing")
    return at_ms
