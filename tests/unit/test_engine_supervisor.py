"""When an engine process is started, asked, given up and started again: decided without processes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from liveedge.engine.process.supervisor import (
    LOOK_EVERY_S,
    Action,
    Patience,
    Supervision,
    back_off_s,
)


@dataclass
class Life:
    """A supervision under a clock that the test moves in steps, and everything that it said."""

    patience: Patience = field(default_factory=lambda: Patience(hang_s=30, load_s=100))
    now_s: float = 1000.0
    said: list[tuple[float, Action]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.supervision = Supervision(self.patience)

    def look(self) -> list[Action]:
        """Until it has nothing more to say; a start and a standby happen at once."""
        found: list[Action] = []
        while (action := self.supervision.next(self.now_s)) != "nothing":
            found.append(action)
            self.said.append((self.now_s, action))
            if action == "start":
                self.supervision.standby(present=False)
                self.supervision.started()
            elif action == "prepare":
                self.supervision.standby(present=True)
            elif action == "kill":
                self.supervision.ended(self.now_s)
        return found

    def live(self, seconds: float, *, answers: bool = True, step_s: float = LOOK_EVERY_S) -> None:
        """Look again and again; pings are answered at once, or not at all."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += step_s
            if "ping" in self.look() and answers:
                self.supervision.heard()

    def ready(self) -> None:
        self.look()
        self.supervision.opened(self.now_s)

    def crash(self) -> None:
        self.supervision.ended(self.now_s)

    def times(self, action: Action) -> list[float]:
        return [at_s for at_s, what in self.said if what == action]


def test_the_first_process_starts_at_once_and_only_once() -> None:
    life = Life()
    assert life.look() == ["start"]
    assert life.look() == []
    assert life.supervision.n_restarts == 0


def test_an_engine_that_answers_lives_for_ever() -> None:
    life = Life()
    life.ready()
    life.live(3600)
    assert life.times("kill") == []
    assert len(life.times("ping")) > 3600 / 30


def test_an_engine_that_answers_no_ping_is_killed_after_its_time_and_started_again() -> None:
    life = Life()
    life.ready()
    begun_s = life.now_s
    life.live(60, answers=False)
    (killed_s, *_) = life.times("kill")
    assert 30 <= killed_s - begun_s <= 30 + 5 + 2 * LOOK_EVERY_S  # the last ping may be 5 s away
    assert life.times("start") == [begun_s, killed_s]
    assert life.supervision.n_restarts == 1


def test_loading_has_a_longer_time_of_its_own() -> None:
    life = Life()
    life.look()
    begun_s = life.now_s
    life.live(99)
    assert life.times("kill") == []
    life.live(5)
    assert [at_s - begun_s for at_s in life.times("kill")] == [pytest.approx(100, abs=2)]


def test_a_server_that_was_held_up_does_not_take_that_for_silence_of_the_engine() -> None:
    life = Life()
    life.ready()
    life.live(6, answers=False)  # a ping is on its way
    life.now_s += 1000  # a debugger, a busy machine: nobody looked
    assert "kill" not in life.look()
    life.supervision.heard()
    life.live(100)
    assert life.times("kill") == []


def test_restarts_come_at_once_and_then_ever_later() -> None:
    life = Life()
    life.ready()
    waits: list[float] = []
    for _ in range(8):
        crashed_s = life.now_s
        life.crash()
        life.live(40, step_s=0.25)
        waits.append(life.times("start")[-1] - crashed_s)
        life.supervision.opened(life.now_s)
    assert waits == [0.25, 1, 2, 4, 8, 16, 30, 30]  # it is looked at every quarter
    assert life.supervision.n_restarts == 8


def test_after_a_healthy_minute_a_crash_is_a_first_one_again() -> None:
    life = Life()
    life.ready()
    for _ in range(4):
        life.crash()
        life.live(10, step_s=0.25)
        life.supervision.opened(life.now_s)
    life.live(60)
    crashed_s = life.now_s
    life.crash()
    life.look()
    assert life.times("start")[-1] == crashed_s


def test_a_crash_while_loading_counts_like_any_other() -> None:
    life = Life()
    life.look()
    life.crash()
    assert life.look() == ["start"]
    life.crash()
    assert life.look() == []
    assert life.supervision.retry_after_s(life.now_s) == 1.0


def test_clients_are_told_how_long_the_back_off_lasts_and_less_and_less() -> None:
    life = Life()
    life.ready()
    for _ in range(5):
        life.crash()
        life.live(10, step_s=0.25)
        life.supervision.opened(life.now_s)
    life.crash()  # the sixth: started again in 16 s
    told = []
    for _ in range(3):
        told.append(life.supervision.retry_after_s(life.now_s))
        life.now_s += 7
    assert told == [16.0, 9.0, 2.0]


def test_a_standby_is_prepared_once_the_engine_answers_and_again_when_it_was_used() -> None:
    life = Life()
    life.look()
    life.live(20)
    assert life.times("prepare") == []
    life.supervision.opened(life.now_s)
    life.live(20)
    assert len(life.times("prepare")) == 1
    life.crash()
    life.look()
    life.supervision.opened(life.now_s)
    life.live(20)
    assert len(life.times("prepare")) == 2


def test_a_standby_that_dies_is_replaced_but_not_in_a_tight_loop() -> None:
    life = Life()
    life.ready()
    life.live(5, step_s=0.1)
    for _ in range(20):
        life.supervision.standby(present=False)
        life.live(0.1, step_s=0.1)
    assert len(life.times("prepare")) == 1
    life.live(60)
    assert len(life.times("prepare")) == 2


def test_without_standby_none_is_prepared() -> None:
    life = Life(Patience(standby=False))
    life.ready()
    life.live(100)
    assert life.times("prepare") == []


def test_it_is_never_left_unwatched_for_long() -> None:
    life = Life(Patience(hang_s=1))
    assert life.supervision.wait_s(life.now_s) == 0
    life.ready()
    assert 0 < life.supervision.wait_s(life.now_s) <= 0.25


def test_back_off_is_bounded() -> None:
    assert [back_off_s(n) for n in (0, 1, 2, 3, 50)] == [0, 1, 2, 4, 30]


def test_an_engine_that_once_loaded_fast_is_given_up_sooner_when_it_loads_again():
    life = Life(Patience(hang_s=30, load_s=900, standby=False))
    life.look()
    life.live(8)
    life.ready()
    life.crash()
    life.look()
    life.live(79)
    assert life.times("kill") == []
    life.live(3)
    assert len(life.times("kill")) == 1


def test_a_first_load_has_all_the_time_that_is_allowed():
    life = Life(Patience(hang_s=30, load_s=900, standby=False))
    life.live(890)
    assert life.times("kill") == []
