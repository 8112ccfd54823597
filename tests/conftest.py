"""Adds the category marker from the test's folder, so that nobody can forget it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A loaded machine is slow, not wrong: examples have no time limit of their own.
settings.register_profile("liveedge", deadline=None)
settings.load_profile("liveedge")

TESTS = Path(__file__).parent
CATEGORIES = frozenset({"arch", "unit", "contract", "component", "e2e", "gpu"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        category = item.path.relative_to(TESTS).parts[0]
        if category not in CATEGORIES:
            raise pytest.UsageError(
                f"{item.path} is in no category: move it to one of tests/{sorted(CATEGORIES)}"
            )
        item.add_marker(category)
