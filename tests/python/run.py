#!/usr/bin/env python3
"""Starts the ranks of ranks.py by torchrun, and before them the same training from C++.
run.py RANKS PACKAGE VENV TWIN [unittest's arguments]"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def torchrun(ranks: str, program: list[str], environment: dict[str, str], **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *program]
    return subprocess.run(command, env=environment, **options)


def main() -> int:
    ranks, package, venv, twin, *rest = sys.argv[1:]
    packages = sorted(Path(venv).glob("lib/python*/site-packages"))
    if not packages or not (packages[0] / "transformers").is_dir():
        sys.exit(f"no transformers in {venv} to train a model of: scripts/setup.sh --tests")
    # Behind the interpreter's own, where this PyTorch is.
    environment = os.environ | {
        "PYTHONPATH": package,
        "ZERO_TEST_PACKAGES": str(packages[0]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "ZERO_TIMEOUT": "120",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    told = torchrun(ranks, ["--no-python", twin], environment, stdout=subprocess.PIPE, text=True)
    if told.returncode:
        return told.returncode
    with tempfile.TemporaryDirectory(prefix="zero.python.") as folder:
        lines = [line for line in told.stdout.splitlines() if line.startswith("TWIN ")]
        Path(folder, "twin").write_text("\n".join(lines))
        environment["ZERO_TEST_FOLDER"] = folder
        return torchrun(ranks, [str(Path(__file__).with_name("ranks.py")), *rest], environment).returncode


if __name__ == "__main__":
    sys.exit(main())
