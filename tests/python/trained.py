"""What the tests train, and how they compare."""

from __future__ import annotations

import os
import tempfile
import unittest
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
import zero
from torch import Tensor, nn

WORLD = int(os.environ["WORLD_SIZE"])
RANK = int(os.environ["RANK"])
STAGES = ["ddp", "zero1", "zero2", "zero3"]


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(self.linear(self.norm(x)))


class Net(nn.Module):
    """Next tokens. tests/python/twin.cpp has the same."""

    def __init__(self, words: int = 31, width: int = 24, blocks: int = 3):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList()
        self.head = nn.Linear(width, words)  # before the blocks, as C++ makes members
        for _ in range(blocks):
            self.blocks.append(Block(width))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made(seed: int = 5) -> Net:
    torch.manual_seed(seed)
    return Net()


def tokens_of(micro_batch: int) -> Tensor:
    torch.manual_seed(1000 + micro_batch)
    return torch.randint(31, (4, 9))


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :8])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:9].flatten())


def whole(model: nn.Module) -> dict[str, Tensor]:
    with zero.gather(model.parameters()):
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def stepped(engine: zero.Engine, model: nn.Module, backward: Callable[[Tensor], None] = Tensor.backward) -> float:
    backward(loss_of(model, tokens_of(engine.micro_batch)))
    report = engine.step()
    assert report.applied
    return report.loss


def mean_over_ranks(value: Tensor) -> Tensor:
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / WORLD


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, micro_batch: int) -> float:
    """A step of plain PyTorch: micro_batch is the first rank's."""
    optimizer.zero_grad()
    loss = loss_of(model, tokens_of(micro_batch + RANK))
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = mean_over_ranks(parameter.grad)
    optimizer.step()
    return mean_over_ranks(loss).item()


class Case(unittest.TestCase):
    def expect_close(self, ours: dict[str, Tensor], theirs: Iterable[tuple[str, Tensor]], within: float = 1e-5) -> None:
        for name, expected in theirs:
            difference = (ours[name] - expected.detach()).abs().max().item()
            self.assertLess(difference, within, name)

    def expect_same(self, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
        self.assertEqual(ours.keys(), theirs.keys())
        for name, value in ours.items():
            self.assertTrue(torch.equal(value, theirs[name]), name)

    def folder(self) -> Path:
        """One for all ranks."""
        names = [None]
        if RANK == 0:
            folder = tempfile.TemporaryDirectory(prefix="case.", dir=os.environ["ZERO_TEST_FOLDER"])
            self.addCleanup(folder.cleanup)
            names = [folder.name]
        self.addCleanup(dist.barrier)
        dist.broadcast_object_list(names)
        return Path(names[0])
