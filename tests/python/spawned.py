#!/usr/bin/env python3
"""Ranks that no launcher starts: torch.multiprocessing does, and torch.distributed is told who they are."""

from __future__ import annotations

import os
import socket
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.utils.data

import zero

RANKS = 3
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")


def trained(plan: str, world: zero.World | None = None) -> list[float]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
    engine = zero.Engine(model, plan=plan, optimizer=zero.AdamW(1e-2), world=world)
    losses = []
    for _ in range(3):
        torch.manual_seed(100 + engine.micro_batch)
        model(torch.randn(4, 5)).square().mean().backward()
        losses.append(engine.step().loss)
    return losses


def expect_all(rank: int, world: zero.World) -> None:
    assert (world.rank, world.size, world.local_rank, world.local_size) == (rank, RANKS, rank, RANKS), world
    assert trained("zero3") == trained("ddp")


def told_by_arguments(rank: int, address: str) -> None:
    """As the tutorials of PyTorch do it."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address.split(":")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    expect_all(rank, zero.world())
    expect_all(rank, zero.init())  # once more
    dist.destroy_process_group()
    assert trained("zero3") == trained("ddp")


def told_by_url(rank: int, address: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=RANKS)
    expect_all(rank, zero.init())
    dist.destroy_process_group()


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except zero.ConfigError as error:
        return str(error)
    return ""


def met_in_a_file(rank: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    assert f"torch.distributed has {RANKS} ranks here" in refused(lambda: trained("zero3"))
    dist.destroy_process_group()


def joined_before(rank: int, address: str) -> None:
    alone = zero.init()
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=RANKS)
    assert "behind init_process_group" in refused(lambda: trained("zero3"))
    assert trained("zero3", alone) == trained("ddp", alone)  # one that asks for it
    expect_all(rank, zero.init())
    dist.destroy_process_group()


def evaluated_by_each(rank: int, address: str) -> None:
    """Ranks evaluate as much as they have, and wait in a collective of which no engine knows; a forked worker has none."""
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=RANKS)
    zero.init(transport="gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
    x = torch.ones(4, 5)
    with torch.no_grad():
        expected = model(x).square().mean() * sum(range(RANKS))
    with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
        total = torch.zeros(())
        with torch.no_grad():
            for _ in range(rank):
                total += model(x).square().mean()
        dist.all_reduce(total)
        torch.testing.assert_close(total, expected)
        model(x).square().mean().backward()
        assert engine.step().applied
        workers = torch.utils.data.DataLoader(
            [x], num_workers=1, multiprocessing_context="fork", collate_fn=lambda batch: model(batch[0])
        )
        try:
            next(iter(workers))
        except RuntimeError as error:
            assert "in a process that was forked" in str(error), error
        else:
            raise AssertionError("a forked worker has no parameters in parts")
    dist.destroy_process_group()


class Spawned(unittest.TestCase):
    def spawn(self, rank: Callable[[int, str], None], place: str) -> None:
        torch.multiprocessing.spawn(rank, (place,), RANKS)

    def at_a_port(self, rank: Callable[[int, str], None]) -> None:
        # Held, so that no other program is given it; rank 0 listens there.
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            self.spawn(rank, f"127.0.0.1:{held.getsockname()[1]}")

    def test_ranks_told_by_arguments_are_those_of_torch(self) -> None:
        self.at_a_port(told_by_arguments)

    def test_ranks_told_by_an_address_are_those_of_torch(self) -> None:
        self.at_a_port(told_by_url)

    def test_ranks_evaluate_as_much_as_each_has(self) -> None:
        self.at_a_port(evaluated_by_each)

    def test_ranks_that_met_in_a_file_are_not_found_and_not_one_each(self) -> None:
        with tempfile.TemporaryDirectory(prefix="zero.python.") as folder:
            self.spawn(met_in_a_file, str(Path(folder, "store")))

    def test_a_world_of_one_is_not_taken_for_theirs(self) -> None:
        self.at_a_port(joined_before)


if __name__ == "__main__":
    for variable in LAUNCHERS:
        os.environ.pop(variable, None)
    torch.set_num_threads(1)
    unittest.main()
