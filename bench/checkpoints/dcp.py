"""The same states as checkpoints_ours, sharded along their rows as FSDP2 does, saved and loaded by PyTorch's distributed
checkpoints (DCP) and by torch.save. Start it with torchrun. Rank 0 prints one line, RESULT and JSON; times are those of
the slowest rank, in seconds, one for each round."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

KINDS = ["param", "exp_avg", "exp_avg_sq"]


def status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    return 0


class Bench:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.folder = Path(options.folder) / "dcp"
        self.behind = dist.new_group()  # its collectives must not mix with ours
        self.result: dict[str, Any] = {"seconds": defaultdict(list), "bytes": defaultdict(list)}
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        rows = options.dim // dist.get_world_size()
        self.state = {
            f"layer{layer}.weight.{kind}": DTensor.from_local(torch.rand(rows, options.dim), mesh, [Shard(0)])
            for layer in range(options.layers)
            for kind in KINDS
        }

    def slowest(self, value: float) -> float:
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest.item()

    def measure(self, name: str, work: Callable[[], Any]) -> Any:
        before = status("VmRSS:")
        Path("/proc/self/clear_refs").write_text("5")
        dist.barrier()
        start = time.monotonic()
        done = work()
        self.result["seconds"][name].append(self.slowest(time.monotonic() - start))
        self.result["bytes"][name].append(self.slowest(status("VmHWM:") - before))
        return done

    def fresh(self) -> Path:
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        dist.barrier()
        return self.folder

    def leave_page_cache(self) -> None:
        """Files that are synced."""
        if dist.get_rank() != 0:
            return
        for path in self.folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def round(self) -> None:
        place = self.fresh()
        self.measure("save", lambda: dcp.save(self.state, storage_writer=dcp.FileSystemWriter(place)))
        self.leave_page_cache()
        for name in ("load from the disk", "load"):
            self.measure(name, lambda: dcp.load(self.state, storage_reader=dcp.FileSystemReader(place)))
        place = self.fresh()
        writer = dcp.FileSystemWriter(place)
        future = self.measure("pause", lambda: dcp.async_save(self.state, storage_writer=writer, process_group=self.behind))
        self.measure("behind", future.result)
        place = self.fresh() / f"rank{dist.get_rank()}.pt"
        local = {name: tensor.to_local() for name, tensor in self.state.items()}

        def torch_save() -> None:
            with place.open("wb") as file:
                torch.save(local, file)
                os.fsync(file.fileno())

        self.measure("torch.save", torch_save)
        self.measure("torch.load", lambda: torch.load(place, mmap=True, weights_only=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bench = Bench(options)
    for _ in range(options.rounds):
        bench.round()
    bench.fresh()
    if dist.get_rank() == 0:
        print("RESULT", json.dumps(bench.result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
