#!/usr/bin/env python3
"""The wheel, in environments that are not the one it was built in, and the archive of the sources.
installed.py SOURCES BUILD [unittest's arguments]"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

SOURCES = BUILD = Path()
TORCH = Path(importlib.util.find_spec("torch").submodule_search_locations[0])
TRAINING = """
import json, torch, zero
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
engine = zero.Engine(model, plan="zero3", optimizer=zero.AdamW(1e-2))
losses = []
for _ in range(3):
    torch.manual_seed(100 + engine.micro_batch)
    model(torch.randn(4, 5)).square().mean().backward()
    losses.append(engine.step().loss)
if zero.world().rank == 0:
    print(json.dumps({"ranks": zero.world().size, "losses": losses}))
"""


def run(*command: str | Path, at: Path = Path("/"), **variables: str) -> subprocess.CompletedProcess[str]:
    """Without what tells of this build and of its package."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH", "Torch_DIR")
    }
    return subprocess.run(command, env=kept | variables, capture_output=True, text=True, cwd=at)


def done(*command: str | Path, at: Path = Path("/"), **variables: str) -> str:
    result = run(*command, at=at, **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def environment(folder: Path, packages: Path) -> Path:
    """A fresh one, of which `packages` are a part."""
    done(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "torch.pth").write_text(str(packages))
    return folder / "bin"


def install(programs: Path, wheel: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    done(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)


class Installed(unittest.TestCase):
    wheel: Path
    folder: Path
    tools: dict[str, str]

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="zero.installed.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.tools = {"PYTHONPATH": str(SOURCES / "build/python-tools")}
        settings = ["--config-settings", f"build-dir={BUILD}", "--config-settings", "cmake.define.ZERO_PYTHON_TESTS=ON"]
        settings += ["--config-settings", "cmake.define.ZERO_WERROR=ON"]
        made = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", cls.folder, *settings]
        done(sys.executable, "-m", "pip", "wheel", SOURCES, *made, CXX=os.environ.get("CXX", "c++"), **cls.tools)
        (cls.wheel,) = cls.folder.glob("*.whl")
        cls.programs = environment(cls.folder / "environment", TORCH.parent)
        install(cls.programs, cls.wheel)

    def test_a_wheel_has_types_and_nothing_of_libtorch(self) -> None:
        names = zipfile.ZipFile(self.wheel).namelist()
        for name in ("zero/_native.pyi", "zero/py.typed", "zero/integrations/transformers.py", "zero/program/zero"):
            self.assertIn(name, names)
        native = f"zero/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        self.assertEqual({name for name in names if ".so" in name}, {native, "zero/program/zero_training.so"})
        (metadata,) = [name for name in names if name.endswith("/METADATA")]
        self.assertRegex(zipfile.ZipFile(self.wheel).read(metadata).decode(), r"Requires-Dist: torch==\d+\.\d+\.\*\n")

    def test_trains_by_torchrun(self) -> None:
        script = self.folder / "train.py"
        script.write_text(TRAINING)
        alone = json.loads(done(self.programs / "python", script, OMP_NUM_THREADS="1"))
        self.assertEqual((alone["ranks"], len(alone["losses"])), (1, 3))
        torchrun = [self.programs / "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        told = json.loads(done(*torchrun, script, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"))
        self.assertEqual((told["ranks"], len(told["losses"])), (2, 3))

    def test_the_program_finds_the_libtorch_of_this_python(self) -> None:
        zero = self.programs / "zero"
        self.assertIn("zero3", done(zero, "plan", "--model", "7b", "--ranks", "8"))
        small = ["--model", "micro", "--ranks", "2", "--steps", "1", "--batch", "1", "--seq", "16"]
        self.assertIn("step 1  loss ", done(zero, "train", *small, OMP_NUM_THREADS="1"))

    def test_another_pytorch_is_named(self) -> None:
        other = self.folder / "other"
        (other / "torch").mkdir(parents=True)
        (other / "torch/__init__.py").write_text('__version__ = "2.99.0"\n')
        programs = environment(self.folder / "of_another", other)
        install(programs, self.wheel)
        result = run(programs / "python", "-c", "import zero")
        self.assertRegex(result.stderr, r"ImportError: zero was built with PyTorch \d+\.\d+\.\d+, here is 2\.99\.0 ")
        self.assertEqual(result.stderr.count("Error: "), 1)

    def test_the_archive_has_the_sources(self) -> None:
        make = "import sys; sys.path.append(sys.argv[1]); import zero_build; zero_build.build_sdist(sys.argv[2])"
        done(sys.executable, "-c", make, "python/packaging", self.folder, at=SOURCES, **self.tools)
        (archive,) = self.folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(self.folder / "sources", filter="data")
        (root,) = (self.folder / "sources").iterdir()
        for folder in ("cli", "cmake", "include", "models", "planner", "python", "src"):
            self.assertEqual(self.files(root / folder), self.files(SOURCES / folder), folder)
        settings = [
            "-DZERO_PYTHON=ON",
            "-DSKBUILD_SCRIPTS_DIR=bin",
            "-DZERO_TESTS=OFF",
            "-DZERO_BENCH=OFF",
            "-DZERO_EXAMPLES=OFF",
            "-DZERO_INSTALL=OFF",
        ]
        done("cmake", "-S", root, "-B", root / "build", f"-DPython_EXECUTABLE={sys.executable}", *settings)

    def files(self, folder: Path) -> set[Path]:
        return {file.relative_to(folder) for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"}


if __name__ == "__main__":
    SOURCES, BUILD = (Path(argument).resolve() for argument in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
