"""Models that change while an engine has them: buffers are assigned, layers replaced; and other optimizers' state."""

from __future__ import annotations

import itertools
import math

import torch
import zero
from torch import Tensor, nn
from trained import RANK, STAGES, Case


class Running(nn.Module):
    def __init__(self, theta: float = 2.0, length: int = 4):
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("running", torch.zeros(4))
        self.register_buffer("later", None)
        self.register_buffer("table", torch.full((length,), theta), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) * self.table[:4]
        with torch.no_grad():
            self.running = 0.5 * self.running + 0.5 * y.mean(0)
        return y


def train(engine: zero.Engine, model: nn.Module, steps: int = 1) -> zero.StepReport:
    for _ in range(steps):
        torch.manual_seed(engine.micro_batch)
        model(torch.randn(5, 4)).square().mean().backward()
        report = engine.step()
    return report


class Buffers(Case):
    def test_that_are_assigned_are_saved_and_loaded(self) -> None:
        for plan in STAGES:
            folder = self.folder() / plan
            model = Running()
            with zero.Engine(model, plan, zero.SGD(0.1)) as engine:
                train(engine, model, 3)
                model.later = torch.ones(2)
                engine.save(folder)
                saved = {name: buffer.clone() for name, buffer in model.named_buffers()}
                train(engine, model, 2)
                self.assertFalse(torch.equal(model.running, saved["running"]))
                engine.load(folder)
                if RANK == 0:
                    self.expect_same(dict(model.named_buffers()), saved)
            model = Running()
            model.later = torch.zeros(2)
            with zero.Engine(model, plan, zero.SGD(0.1)) as engine:
                engine.load(folder)
                if RANK == 0:
                    self.expect_same(dict(model.named_buffers()), saved)

    def test_that_are_not_persistent_are_the_programs(self) -> None:
        folder = self.folder()
        model = Running()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            train(engine, model)
            engine.save(folder)
        for other in (Running(theta=3.0), Running(length=9)):
            table = other.table.clone()
            with zero.Engine(other, "ddp", zero.SGD(0.1)) as engine:
                for weights_only in (False, True):
                    engine.load(folder, weights_only=weights_only)
                    self.assertTrue(torch.equal(other.table, table))
                    self.assertTrue(train(engine, other).applied)


class Layers(Case):
    def refused(self, change, why: str, **arguments) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        with zero.Engine(model, "zero2", zero.SGD(0.1), **arguments) as engine:
            train(engine, model)
            change(model)
            model(torch.ones(1, 4)).sum().backward()
            with self.assertRaisesRegex(zero.StateError, why):
                engine.step()
            with self.assertRaisesRegex(zero.StateError, why):
                engine.save("there-is-no-such-folder")

    def test_that_are_replaced_are_named(self) -> None:
        self.refused(lambda model: model.__setitem__(1, nn.Linear(4, 4)), r"'1\.weight' .* no longer the one")
        self.refused(lambda model: setattr(model[0], "bias", nn.Parameter(torch.ones(4))), r"'0\.bias' .* no longer")
        self.refused(lambda model: model.__delitem__(1), r"'1\.weight', which the engine trains, is no longer in")

    def test_that_are_added_are_named(self) -> None:
        self.refused(lambda model: model.append(nn.Linear(4, 4)), r"'2\.weight' was put into the model after")

    def test_that_the_program_keeps_may_be_added(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4))
        with zero.Engine(model, "zero3", zero.SGD(0.1), ignored=lambda each: each.name.startswith("1.")) as engine:
            train(engine, model)
            model.append(nn.Linear(4, 4))
            self.assertTrue(train(engine, model).applied)


class Optimizers(Case):
    KINDS = {
        "momentum": zero.SGD(0.05, momentum=0.9),
        "rmsprop": zero.RMSprop(1e-3),
        "adagrad": zero.Adagrad(1e-2),
        "lion": zero.Lion(1e-4),
        "adamw": zero.AdamW(1e-3),
        "lamb": zero.Lamb(1e-3),
    }

    def test_of_other_kinds_are_refused_or_begin(self) -> None:
        folder = self.folder()
        for kind, optimizer in self.KINDS.items():
            model = nn.Sequential(nn.Linear(4, 4))
            with zero.Engine(model, "zero3", optimizer) as engine:
                train(engine, model, 2)
                engine.save(folder / kind)
        for kind, other in itertools.permutations(self.KINDS, 2):
            model = nn.Sequential(nn.Linear(4, 4))
            with self.subTest(f"{kind}, {other}"), zero.Engine(model, "zero1", self.KINDS[other]) as engine:
                if {kind, other} == {"adamw", "lamb"}:
                    engine.load(folder / kind)
                else:
                    with self.assertRaisesRegex(zero.ConfigError, f"is of {kind} .*, and not of {other}"):
                        engine.load(folder / kind)
                    engine.load(folder / kind, allow_new_optimizer=True)
                self.assertTrue(math.isfinite(train(engine, model, 2).loss))
