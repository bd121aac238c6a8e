"""Where the peers live: a virtual environment of their own, and the variables that every contender runs under."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# What DeepSpeed builds with has to be there before it: its own setup imports torch.
STEPS = [
    ["torch==2.13.0", "numpy", "setuptools", "wheel", "ninja"],
    ["--no-build-isolation", "deepspeed==0.19.*"],
]
PEERS = ["torch", "deepspeed"]
VERSIONS = """
import importlib.metadata as metadata, json, sys
installed = {d.metadata["Name"]: d.version for d in metadata.distributions()}
print(json.dumps({name: installed.get(name, "missing") for name in sys.argv[1:]}))
"""


def pip(venv: Path, arguments: list[str]) -> bool:
    command = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, stdout=sys.stderr).returncode == 0


def prepare(venv: Path) -> None:
    """Installs what is missing. Without torch nothing can run; a peer that cannot be installed is reported later."""
    stamp, wanted = venv / "peers.json", json.dumps(STEPS)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    print(f"installing the peers into {venv}", file=sys.stderr)
    if not (venv / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    done = [pip(venv, arguments) for arguments in STEPS]
    if not done[0]:
        raise SystemExit(f"pip could not install {' '.join(STEPS[0])} into {venv}: see above")
    if all(done):
        stamp.write_text(wanted)


def versions(venv: Path) -> dict[str, str]:
    output = subprocess.run([venv / "bin/python", "-c", VERSIONS, *PEERS], check=True, capture_output=True, text=True)
    return json.loads(output.stdout)


def variables(venv: Path) -> dict[str, str]:
    """One thread a rank, the loopback interface; DeepSpeed on the CPU, what it compiles kept in the environment."""
    return {
        **os.environ,
        "PATH": f"{venv / 'bin'}:{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(venv / "extensions"),
    }


def first_field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return "unknown"


def machine() -> dict[str, str | int]:
    return {
        "processor": first_field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": first_field("/proc/meminfo", "MemTotal"),
        "kernel": os.uname().release,
    }
