"""When an engine process is started before anything is known for certain."""

from __future__ import annotations

import pytest

from liveedge.__main__ import wants_engine


@pytest.mark.parametrize(
    "arguments",
    [["serve"], ["serve", "--port", "0"], ["serve", "folder", "--engine", "process"]],
)
def test_a_server_most_likely_wants_one(arguments: list[str]) -> None:
    assert wants_engine(arguments, {})


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--version"],
        ["ask", "serve"],
        ["serve", "--help"],
        ["serve", "-h"],
        ["serve", "--engine", "inproc"],
        ["serve", "--engine=inproc"],
    ],
)
def test_nothing_else_does(arguments: list[str]) -> None:
    assert not wants_engine(arguments, {})


def test_a_variable_can_say_no() -> None:
    assert not wants_engine(["serve"], {"LIVEEDGE_ENGINE": "inproc"})
    assert wants_engine(["serve"], {"LIVEEDGE_ENGINE": "process"})
