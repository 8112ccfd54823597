"""Puts the compiled kernels into a wheel that is made where a C compiler is.

Without a compiler, or with LIVEEDGE_NATIVE=0, the wheel is the same without them: pure Python, for
every machine. The C files are in it either way, so they can be compiled after the installation.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/liveedge/native")


class WheelHook(BuildHookInterface[Any]):
    """Called by hatchling before a wheel is written."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # a checkout has its library in the user's cache
            return
        if os.environ.get("LIVEEDGE_NATIVE") == "0":
            return
        native = load_builder(Path(self.root) / FOLDER / "build.py")
        try:
            library = native.build()
        except native.BuildFailed as error:
            self.app.display_warning(f"wheel without native kernels: {error}")
            return
        build_data["force_include"][str(library)] = f"liveedge/native/{native.SHIPPED}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"  # opened by ctypes: any Python will do


def load_builder(path: Path) -> ModuleType:
    """The package's own builder; the package itself is not installed yet."""
    spec = importlib.util.spec_from_file_location("liveedge_native_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
