"""Runs a contender: waits for its line of results, samples its memory from outside, and never leaves it behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

INTERVAL = 0.02  # seconds from one sample of memory to the next
CENSUS = 0.25  # seconds from one look for new processes to the next
GRACE = 5.0  # seconds from SIGTERM to SIGKILL
ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?(?:[\w.]*(?:Error|Exception)\b|peers_ours:|zero:)")
AGENTS_OWN = "ChildFailedError"  # torchrun's, which says only that a rank failed


class RunFailed(Exception):
    """What the contender said last."""


@dataclass
class Samples:
    """Shares of memory by process: moments on the monotonic clock, and bytes."""

    by_pid: dict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    def peak(self, pid: int, window: list[float]) -> int:
        inside = [pss for moment, pss in self.by_pid[pid] if window[0] <= moment <= window[1]]
        if not inside:
            raise RunFailed(f"no sample of process {pid} while it was measured: give it more steps")
        return max(inside)


@dataclass
class Outcome:
    result: dict[str, Any]
    samples: Samples

    def peak_over_base(self) -> int:
        """The largest of all ranks, above what each held before it had a model."""
        ranks = zip(self.result["pids"], self.result["base_pss"], strict=True)
        return max(self.samples.peak(pid, self.result["window"]) - base for pid, base in ranks)


def family(mark: str) -> set[int]:
    """The processes of one run, wherever they are in the tree: all inherit the mark, a variable of the environment."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.add(int(entry))
    return found


def pss(pid: int) -> int | None:
    """Bytes, shared ones by their share; None when the process is gone."""
    with contextlib.suppress(OSError, StopIteration):
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return None


@dataclass
class Run:
    process: subprocess.Popen[bytes]
    mark: str
    deadline: float

    def running(self) -> bool:
        return self.process.poll() is None and time.monotonic() < self.deadline

    def wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.deadline - time.monotonic())

    def sample(self) -> Samples:
        samples, pids, census = Samples(), set[int](), 0.0
        while self.running():
            begin = time.monotonic()
            if begin - census > CENSUS:
                pids, census = family(self.mark), begin
            for pid in pids:
                if (share := pss(pid)) is not None:
                    samples.by_pid[pid].append((time.monotonic(), share))
            time.sleep(max(0.0, INTERVAL - (time.monotonic() - begin)))
        return samples

    def end(self) -> None:
        """The launcher first, which ends its ranks; then whoever is left, in whatever process group."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
        while alive := family(self.mark):
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(INTERVAL)


@contextlib.contextmanager
def started(
    command: list[str], environment: dict[str, str], timeout: float, out: IO[bytes], err: IO[bytes]
) -> Iterator[Run]:
    name, value = "PEERS_RUN", uuid.uuid4().hex
    process = subprocess.Popen(
        command,
        env={**environment, name: value},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )
    run = Run(process, f"{name}={value}", time.monotonic() + timeout)
    try:
        yield run
    finally:
        run.end()


def text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" =-")]
    errors = [line for line in lines if ERROR.match(line) and AGENTS_OWN not in line]
    return (errors or lines or ["it said nothing"])[-1]


def line_of(text: str, key: str) -> dict[str, Any] | None:
    for line in text.splitlines():
        if f"{key} {{" in line:
            return json.loads(line.partition(f"{key} ")[2])
    return None


def measure(
    command: list[str], environment: dict[str, str], timeout: float, key: str = "RESULT", sampled: bool = False
) -> Outcome:
    """The line that begins with `key`. Throws RunFailed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with started(command, environment, timeout, out, err) as run:
            samples = run.sample() if sampled else Samples()
            run.wait()
            if (code := run.process.poll()) is None:
                raise RunFailed(f"not done after {timeout:.0f} s: ended")
            if code:
                raise RunFailed(f"{last_error(text_of(err))} (exit code {code})")
        if (result := line_of(text_of(out), key)) is None:
            raise RunFailed(f"no line {key}; {last_error(text_of(err))}")
        return Outcome(result, samples)
