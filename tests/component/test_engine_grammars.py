"""Schemas are compiled beside the engine thread, and nothing gets out of order by that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from liveedge.core.clock import SystemClock
from liveedge.core.errors import LiveEdgeError, ResponseFormatUnsupported
from liveedge.engine.form.forms import JsonForm
from liveedge.engine.interface import PreparedRequest
from liveedge.engine.process.core import MAX_HINTS, Grammars
from liveedge.engine.process.messages import Abort, Compile, Submit
from liveedge.engine.request import GenerateRequest

LIMIT_S = 20.0


class SlowCompiler:
    """Compiles when it may."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.busy = threading.Event()
        self.compiled: list[str] = []
        self.error: Exception | None = None

    def compile(self, grammar: str) -> None:
        self.busy.set()
        assert self.open.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        self.compiled.append(grammar)


class Held:
    """Grammars with a slow compiler, and what passed."""

    def __init__(self) -> None:
        self.compiler = SlowCompiler()
        self.passed: list[Submit | Abort] = []
        compiler: Any = self.compiler
        self.grammars = Grammars(compiler, accept=self.passed.append)
        self.grammars.start()

    def ids(self) -> list[tuple[type, str]]:
        return [
            (type(m), m.request_id if isinstance(m, Abort) else m.prepared.request.request_id)
            for m in self.passed
        ]


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.compiler.open.set()
    held.grammars.close()


def submit(request_id: str) -> Submit:
    none = np.zeros(0, np.int64)
    asked = GenerateRequest(
        request_id=request_id, messages=(), form=JsonForm({"type": "object", "title": request_id})
    )
    prepared = PreparedRequest(
        request=asked,
        ids=none,
        positions=none.reshape(3, 0),
        position_delta=0,
        identity=none,
        groups=(),
        image_tokens=0,
        max_new_tokens=1,
    )
    return Submit(prepared, 0.0)


def until(condition: Callable[[], bool]) -> None:
    clock, never = SystemClock(), threading.Event()
    limit_s = clock.monotonic_s() + LIMIT_S
    while not condition():
        assert clock.monotonic_s() < limit_s, "waited in vain"
        clock.wait(never, 0.001)


def test_requests_pass_in_order_once_their_schemas_are_compiled(held: Held) -> None:
    for name in ("a", "b", "c"):
        held.grammars.take(submit(name))
    assert held.compiler.busy.wait(LIMIT_S)
    assert held.passed == []
    held.compiler.open.set()
    until(lambda: len(held.passed) == 3)
    assert held.ids() == [(Submit, "a"), (Submit, "b"), (Submit, "c")]
    assert len(held.compiler.compiled) == 3


def test_who_leaves_meanwhile_is_not_forgotten_and_does_not_overtake_itself(held: Held) -> None:
    held.grammars.take(submit("a"))
    held.grammars.abort(Abort("a"))
    held.grammars.abort(Abort("somebody else"))
    assert held.ids() == [(Abort, "somebody else")]
    held.compiler.open.set()
    until(lambda: len(held.passed) == 3)
    assert held.ids()[1:] == [(Submit, "a"), (Abort, "a")]
    held.grammars.abort(Abort("a"))  # it has passed: nothing holds its name any more
    assert held.ids()[3:] == [(Abort, "a")]


@pytest.mark.parametrize("error", [ResponseFormatUnsupported("no"), RuntimeError("a defect")])
def test_a_schema_that_cannot_be_compiled_fails_its_request_and_not_the_thread(
    held: Held, error: LiveEdgeError, caplog: pytest.LogCaptureFixture
) -> None:
    held.compiler.error = error
    held.compiler.open.set()
    held.grammars.take(submit("a"))
    held.grammars.take(submit("b"))
    until(lambda: len(held.passed) == 2)  # the runner says the same again, to each alone


def test_hints_are_bounded_and_those_left_out_are_counted(held: Held) -> None:
    held.grammars.take(Compile("first"))
    assert held.compiler.busy.wait(LIMIT_S)
    for n in range(MAX_HINTS + 5):
        held.grammars.take(Compile(str(n)))
    assert held.grammars.n_left_out == 5
    held.grammars.take(submit("a"))  # never left out
    held.compiler.open.set()
    until(lambda: len(held.passed) == 1)
    assert len(held.compiler.compiled) == 1 + MAX_HINTS + 1
