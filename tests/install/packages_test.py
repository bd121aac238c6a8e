#!/usr/bin/env python3
"""The Debian packages: made, read by lintian, and laid out in FOLDER. packages_test.py BUILD FOLDER TORCH_DIR"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

BUILD = FOLDER = TORCH_DIR = Path()


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "ZERO_", "Torch_"))}
    return subprocess.run(command, env=kept | variables, capture_output=True, text=True)


class Packages(unittest.TestCase):
    packages: list[Path]

    @classmethod
    def setUpClass(cls) -> None:
        shutil.rmtree(BUILD / "packages", ignore_errors=True)
        shutil.rmtree(FOLDER, ignore_errors=True)
        made = run("cpack", "--config", BUILD / "CPackConfig.cmake")
        assert made.returncode == 0, made.stdout + made.stderr
        cls.packages = sorted((BUILD / "packages").glob("*.deb"))
        for package in cls.packages:
            assert run("dpkg-deb", "-x", package, FOLDER).returncode == 0

    def test_are_the_library_and_the_program(self) -> None:
        self.assertEqual([package.name.split("_")[0] for package in self.packages], ["libzero-bin", "libzero-dev"])
        names = {file.name for file in FOLDER.rglob("*")}
        self.assertLessEqual({"zero", "zero_training.so", "libzero.a", "zero.h", "zeroConfig.cmake"}, names)
        self.assertFalse([name for name in names if "torch" in name.lower() and name != "FindLibTorch.cmake"])

    def test_have_no_errors_for_lintian(self) -> None:
        read = run("lintian", "--fail-on", "error", *self.packages)
        self.assertEqual(read.returncode, 0, read.stdout + read.stderr)

    def test_the_program_trains_with_the_libtorch_that_is_named(self) -> None:
        training = [FOLDER / "usr/bin/zero", "train", "--model", "micro", "--steps", "1", "--batch", "1", "--seq", "16"]
        done = run(*training, Torch_DIR=str(TORCH_DIR))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step 1  loss ", done.stdout)
        bare = run(*training)
        self.assertEqual(bare.returncode, 1)
        self.assertIn("where Torch_DIR says", bare.stderr)


if __name__ == "__main__":
    BUILD, FOLDER, TORCH_DIR = (Path(argument) for argument in sys.argv[1:4])
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
