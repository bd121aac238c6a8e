#!/usr/bin/env python3
"""That the consumers say what the README does: words_test.py SOURCES."""

from __future__ import annotations

import re
import sys
import unittest
from pathlib import Path

SOURCES = Path()
CONSUMERS = ["find_package", "add_subdirectory", "fetch_archive"]  # one for each paragraph, and what follows all


def code(text: str) -> str:
    return "\n".join(line.split("#")[0].rstrip() for line in text.splitlines())


class Words(unittest.TestCase):
    def test_are_those_of_the_readme(self) -> None:
        block = re.search(r"```cmake\n(.*?)```", (SOURCES / "README.md").read_text(), re.DOTALL)
        *ways, link = [paragraph.strip() for paragraph in code(block[1]).split("\n\n")]
        self.assertEqual(len(ways), len(CONSUMERS))
        consumers = SOURCES / "tests/install/consumers"
        for way, name in zip(ways, CONSUMERS, strict=True):
            told = (consumers / name / "CMakeLists.txt").read_text()
            self.assertIn(way + "\n", told)
            self.assertIn(link + "\n", told)
        folder = ways[-1].replace("URL", "SOURCE_DIR").replace(".tar.gz", "")
        self.assertIn(folder + "\n", (consumers / "fetch_folder/CMakeLists.txt").read_text())


if __name__ == "__main__":
    SOURCES = Path(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
