"""What the commands tell who watches. Servers have a part in it: none of theirs steers a terminal."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """To standard error, at once."""
    print(printable(line), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Without characters that a terminal would obey, and without halves of characters."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)
