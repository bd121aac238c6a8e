"""Which PyTorch the Python package is built for, and what its metadata say of it and of the version.

It is that of the environment, which a build in isolation does not see by itself; where there is none, the version that
scripts/setup.sh takes. As a program it prints the folder of LibTorch, for CMake.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_LOOK = """
import importlib.metadata, importlib.util
print(importlib.util.find_spec("torch").submodule_search_locations[0], importlib.metadata.version("torch"), sep="\\n")
"""


def _found(*options: str) -> tuple[str, str] | None:
    told = subprocess.run([sys.executable, *options, "-c", _LOOK], capture_output=True, text=True, cwd="/")
    lines = told.stdout.splitlines()
    return (lines[0], lines[1]) if told.returncode == 0 else None


def of_the_environment() -> tuple[str, str] | None:
    """Folder and version. Isolation is by variables of the environment, which -E has the interpreter ignore."""
    return _found("-E")


def usual_version() -> str:
    return _only(r"^torch_version=(\S+)", "scripts/setup.sh")


def _only(pattern: str, file: str) -> str:
    match = re.search(pattern, (_ROOT / file).read_text(), re.MULTILINE)
    assert match, f"{file} has no {pattern}"
    return match[1]


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """LibTorch keeps no binary interface between minor versions."""
    _, version = of_the_environment() or _found() or ("", usual_version())
    minor = ".".join(version.split(".")[:2])
    return {
        "version": _only(r"^project\(zero VERSION (\S+)", "CMakeLists.txt"),
        "dependencies": [f"torch=={minor}.*"],
    }


if __name__ == "__main__":
    there = of_the_environment() or _found()
    if there is None:
        sys.exit(
            f"{sys.executable} imports no PyTorch, of which the package is built (pip install torch=={usual_version()})"
        )
    print(there[0])
