"""A budget refuses at its bound, counts it, and gets everything back."""

import pytest

from liveedge.core.errors import QueueFull
from liveedge.service.limits import Budget, Shares


def test_a_budget_refuses_what_does_not_fit_and_counts_it():
    budget = Budget(10, what="things")
    with budget.hold(6):
        with pytest.raises(QueueFull, match="6 of 10 things"), budget.hold(5):
            pass
        with budget.hold(4):
            assert budget.used == 10
    assert (budget.used, budget.refused) == (0, 1)


def test_what_fails_gives_its_part_back():
    budget = Budget(1, what="things")
    with pytest.raises(KeyError), budget.hold():
        raise KeyError
    assert budget.used == 0


def test_what_one_owner_takes_is_not_missing_for_another():
    shares = Shares(10, what="bytes of one key")
    with shares.growing("a") as first, shares.growing("a") as second, shares.growing("b") as other:
        first.add(6)
        other.add(10)
        with pytest.raises(QueueFull, match="6 of 10 bytes of one key"):
            second.add(5)
        second.add(4)
    with shares.growing("a") as again:
        again.add(10)
