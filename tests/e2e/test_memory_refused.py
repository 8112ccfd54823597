"""A server whose memory does not suffice ends before it loads or listens, and says what would fit."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(240)


def test_what_does_not_fit_is_refused_at_the_start_with_what_would():
    command = [sys.executable, "-m", "liveedge", "serve", "--port", "0", "--memory", "3200MiB"]
    done = subprocess.run(
        [*command, "--history-mb", "2048"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("liveedge: the memory plan needs ")
    assert "What would fit: --history-mb " in done.stderr
    assert done.stderr.count("\n") == 1
