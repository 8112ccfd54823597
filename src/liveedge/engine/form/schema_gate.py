"""Which forms are known to be good: each new one goes on trial in a process of its own.

Threads  any; a check blocks its thread for as long as the trial takes.
Bounds   N_TRIALS at once, MAX_WAITING threads that wait for one (then QueueFull), MAX_REMEMBERED
         verdicts. A trial that takes too much processor time or memory ends there: that is a
         verdict too. One that is not over after TRIAL_S is killed: the machine is busy, and the
         next request tries again.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

from liveedge.core.errors import DeadlineExceeded, QueueFull, ResponseFormatUnsupported
from liveedge.engine.form.forms import ANY_OBJECT, AnswerForm
from liveedge.engine.form.schema import grammar_of, on_trial

N_TRIALS = 2
MAX_WAITING = 6
MAX_REMEMBERED = 256
TRIAL_S = 20.0  # of real time; `schema.TRIAL_CPU_S` is the limit that counts
TOO_MUCH = "it takes too much time or memory"


class SchemaGate:
    """Lets forms pass that can be enforced at a bounded price.

    `compile_ahead` is called once for each new good one, on the thread that asked; `trial` says
    what is wrong with a grammar, as `schema.trial` does.
    """

    def __init__(
        self, compile_ahead: Callable[[str], None], *, trial: Callable[[str], str] | None = None
    ) -> None:
        self._compile_ahead = compile_ahead
        self._trial = trial or run_trial
        self._verdicts: dict[str, str] = {grammar_of(ANY_OBJECT): ""}
        self._changed = threading.Condition()  # over the three of this class that change
        self._n_running = 0
        self.n_waiting = 0  # threads

    def check(self, form: AnswerForm) -> None:
        """Raise ResponseFormatUnsupported where the form cannot be enforced, or QueueFull."""
        grammar = grammar_of(form)
        verdict = self._known(grammar)
        if verdict is None:
            verdict = self._try(grammar, on_trial(form))
        if verdict:
            raise ResponseFormatUnsupported(f"this {form.kind} cannot be enforced: {verdict}")

    def _try(self, grammar: str, text: str) -> str:
        self._enter()
        try:
            # Another thread may have had the same form on trial while this one waited.
            verdict = self._known(grammar)
            if verdict is None:
                verdict = self._trial(text)
                self._remember(grammar, verdict)
                if not verdict:
                    self._compile_ahead(grammar)
            return verdict
        finally:
            with self._changed:
                self._n_running -= 1
                self._changed.notify()

    def _enter(self) -> None:
        with self._changed:
            if self.n_waiting >= MAX_WAITING:
                raise QueueFull(
                    f"{self.n_waiting} new forms of answers wait for their check already; try again"
                    " soon, or use one that was used before",
                    retry_after_s=1.0,
                )
            self.n_waiting += 1
            self._changed.wait_for(lambda: self._n_running < N_TRIALS)
            self.n_waiting -= 1
            self._n_running += 1

    def _known(self, grammar: str) -> str | None:
        with self._changed:
            verdict = self._verdicts.pop(grammar, None)
            if verdict is not None:
                self._verdicts[grammar] = verdict  # now the newest
            return verdict

    def _remember(self, grammar: str, verdict: str) -> None:
        with self._changed:
            self._verdicts[grammar] = verdict
            if len(self._verdicts) > MAX_REMEMBERED:
                del self._verdicts[next(iter(self._verdicts))]


def run_trial(text: str) -> str:
    """`schema.trial` in a process of its own, which ends where it takes too much."""
    command = [sys.executable, "-P", "-m", "liveedge.engine.form.schema"]
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            timeout=TRIAL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(
            f"the form of the answer could not be checked within {TRIAL_S:.0f} s; try again"
        ) from error
    return done.stdout if done.returncode == 0 else TOO_MUCH
