"""Puts the compiled part into the wheel, which is then for one kind of machine; without a compiler it is for any."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "workstead/snapshots/libunchanged.so"


class CustomBuildHook(BuildHookInterface[Any]):
    """Called by hatchling for every wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say what the wheel is for."""
        if version != "standard":  # an editable one finds it in the sources
            return
        subprocess.run(["sh", os.path.join(self.root, "requirements", "compile")], check=True)
        built = os.path.join(self.root, "src", LIBRARY)
        if os.path.exists(built):
            build_data["force_include"][built] = LIBRARY
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
