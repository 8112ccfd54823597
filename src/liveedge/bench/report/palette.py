"""Colours by role, for light and dark paper. Against its paper every role has at least 3:1, text 4.5:1.

Nothing is told by colour alone: every series has a shape or a dash of its own, every bar a hatch.
"""

from __future__ import annotations

from collections.abc import Mapping

# role: on light paper, on dark paper
ROLES: Mapping[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181c"),
    "raised": ("#f5f6f8", "#1e2328"),
    "ink": ("#1b2026", "#e9ecef"),
    "muted": ("#56606b", "#a6b0bb"),
    "grid": ("#e3e6ea", "#2c3238"),
    "axis": ("#87919c", "#6f7a86"),
    "shade": ("#f7e6e6", "#3a2326"),
    "quiet": ("#eef1f4", "#20262c"),
    "link": ("#1a56b0", "#8ab8ff"),
    "good": ("#0f6b48", "#62d0a2"),
    "bad": ("#a81c38", "#ff92a4"),
    "doubt": ("#8a4b00", "#f2b45c"),
    # series
    "c0": ("#1f5fbf", "#7ab0ff"),
    "c1": ("#b8520a", "#f0a060"),
    "c2": ("#0f7a55", "#58c99b"),
    "c3": ("#8a3aa8", "#d59bf0"),
    "c4": ("#b3203f", "#ff8fa3"),
    "c5": ("#0b7285", "#5fcbe0"),
    "c6": ("#7a5a1e", "#d8b76a"),
    "c7": ("#5b6672", "#aab4c0"),
    # an order: little load to much
    "r0": ("#0a7f84", "#4fd0d4"),
    "r1": ("#1f74ae", "#6bb8f0"),
    "r2": ("#2f5fc4", "#86a6ff"),
    "r3": ("#5a48b8", "#a898ff"),
    "r4": ("#8a3aa8", "#d08bf0"),
    "r5": ("#a82c7a", "#f082c0"),
    "r6": ("#b3203f", "#ff8a94"),
    "r7": ("#7c1520", "#ffb199"),
}
RAMP = 8


def ramp(place: int, count: int) -> str:
    """The role of number `place` of `count` things in an order."""
    return f"r{round(place * (RAMP - 1) / max(count - 1, 1))}"


def light(role: str) -> str:
    return ROLES[role][0]


def css() -> str:
    """Roles as custom properties; what the reader's system prefers decides, print is on light paper."""
    bright = "".join(f"--{role}:{one};" for role, (one, _) in ROLES.items())
    dark = "".join(f"--{role}:{one};" for role, (_, one) in ROLES.items())
    return (
        f":root{{color-scheme:light dark;{bright}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )
