#!/usr/bin/env python3
"""The installed program, from its prefix alone: program_test.py PREFIX CMAKE [unittest's arguments]."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PREFIX = CMAKE = Path()
TEXT = " ".join(f"word{(17 * i) % 101}" for i in range(3000))


class Program(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.zero = str(PREFIX / "bin/zero")
        (self.folder / "text").write_text(TEXT)

    def run_zero(self, *arguments: str, zero: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "ZERO_"))}
        return subprocess.run([zero or self.zero, *arguments], env=environment, capture_output=True, text=True)

    def training(self, *more: str) -> list[str]:
        small = ["--model", "micro", "--steps", "1", "--batch", "1", "--seq", "16"]
        return ["train", *small, "--data", str(self.folder / "text"), *more]

    def without_libtorch(self) -> str:
        """A copy that does not know where LibTorch is."""
        prefix = self.folder / "prefix"
        shutil.copytree(PREFIX, prefix, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
        (training,) = prefix.glob("lib*/**/zero_training.so")
        script = self.folder / "remove.cmake"
        script.write_text(f'file(RPATH_REMOVE FILE "{training}")\n')
        subprocess.run([CMAKE, "-P", script], check=True)
        return str(prefix / "bin/zero")


class Installed(Program):
    def test_trains(self) -> None:
        for ranks in ("1", "2"):
            done = self.run_zero(*self.training("--ranks", ranks))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("step 1  loss ", done.stdout)

    def test_trains_under_its_launcher(self) -> None:
        done = self.run_zero("launch", "-n", "2", self.zero, *self.training())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[0] step 1  loss ", done.stdout)

    def test_trains_from_another_folder(self) -> None:
        moved = shutil.copytree(PREFIX, self.folder / "moved", symlinks=True)
        done = self.run_zero(*self.training(), zero=str(moved / "bin/zero"))
        self.assertEqual(done.returncode, 0, done.stderr)


class WithoutLibTorch(Program):
    def setUp(self) -> None:
        super().setUp()
        self.bare = self.without_libtorch()

    def test_says_what_training_needs(self) -> None:
        done = self.run_zero(*self.training(), zero=self.bare)
        self.assertEqual(done.returncode, 1)
        for words in ("cannot load what trains", "libtorch", "LD_LIBRARY_PATH"):
            self.assertIn(words, done.stderr)

    def test_launches(self) -> None:
        done = self.run_zero("launch", "-n", "2", "sh", "-c", "echo rank $RANK", zero=self.bare)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] rank 0", "[1] rank 1"])
        failed = self.run_zero("launch", "-n", "2", "sh", "-c", "exit 3", zero=self.bare)
        self.assertEqual(failed.returncode, 3)

    def test_helps_and_plans(self) -> None:
        for arguments in (["launch", "--help"], ["train", "--help"], ["plan", "--model", "7b", "--ranks", "8"]):
            done = self.run_zero(*arguments, zero=self.bare)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_ranks_that_want_to_meet_are_told(self) -> None:
        done = self.run_zero("launch", "-n", "2", self.zero, *self.training(), zero=self.bare)
        self.assertEqual(done.returncode, 1)
        self.assertIn("zero: cannot serve the store in which the ranks meet: cannot load what trains", done.stderr)


if __name__ == "__main__":
    PREFIX, CMAKE = Path(sys.argv[1]), Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
