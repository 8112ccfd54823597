"""Where the model will run, found without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from liveedge.core.errors import SettingsInvalid
from liveedge.engine.device import find_device, n_cuda_devices


def test_the_processor_is_taken_as_asked() -> None:
    assert find_device("cpu") == "cpu"


def test_without_a_driver_there_is_no_device() -> None:
    assert n_cuda_devices("libnobody-has-this.so.1") == 0


def test_what_is_asked_and_not_there_is_refused_and_not_replaced() -> None:
    if n_cuda_devices() > 0:
        pytest.skip("this machine has a CUDA device")
    assert find_device("auto") == "cpu"
    with pytest.raises(SettingsInvalid, match="use cpu or auto"):
        find_device("cuda")


def test_torch_is_found_and_not_imported() -> None:
    code = (
        "import sys; from liveedge.engine.device import find_device; find_device('auto');"
        " assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
