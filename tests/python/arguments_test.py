"""What an engine is given wrong is told of by its name."""

from __future__ import annotations

import unittest

import torch
import zero


class Arguments(unittest.TestCase):
    def refused(self, why: str, **arguments: object) -> None:
        with self.subTest(why), self.assertRaisesRegex(zero.ConfigError, why):
            zero.Engine(torch.nn.Linear(2, 3), **arguments)

    def test_of_other_kinds_are_named(self) -> None:
        self.refused("`optimizer` is the class torch.optim.adamw.AdamW", optimizer=torch.optim.AdamW)
        self.refused("`optimizer` is 0.001", optimizer=1e-3)
        self.refused("`plan` is 3", plan=3)
        self.refused("`world` is 2", world=2)
        self.refused("`seed` is -1", seed=-1)
        self.refused(r"`groups` is \{'lr': 1\}", groups=[{"lr": 1}])
        self.refused("`schedule` is 0.5", schedule=0.5)
        self.refused(r"`ignored` is \['h'\]", ignored=["h"])
        self.refused("`units` is 'Linear'", units="Linear")

    def test_timeouts_are_positive(self) -> None:
        for timeout in (0, -1, float("nan"), float("inf")):
            with self.assertRaisesRegex(zero.ConfigError, "`timeout`"):
                zero.init(timeout=timeout)

    def train(self, engine: zero.Engine, model: torch.nn.Module) -> zero.StepReport:
        model(torch.ones(1, 2)).sum().backward()
        return engine.step()

    def test_schedules_give_numbers(self) -> None:
        model = torch.nn.Linear(2, 3)
        with zero.Engine(model, schedule=lambda step: None if step == 1 else torch.tensor(0.5)) as engine:
            self.assertTrue(self.train(engine, model).applied)
            with self.assertRaisesRegex(zero.ConfigError, "`schedule` gives None for step 1"):
                self.train(engine, model)

    def test_rates_are_numbers(self) -> None:
        for rate in (float("nan"), -1.0, float("inf")):
            model = torch.nn.Linear(2, 3)
            with zero.Engine(model) as engine:
                engine.optimizer.param_groups[0]["lr"] = rate
                with self.assertRaisesRegex(zero.ConfigError, "learning rate"):
                    self.train(engine, model)

    def test_what_would_not_come_back_is_named(self) -> None:
        with zero.Engine(torch.nn.Linear(2, 3)) as engine:
            with self.assertRaisesRegex(zero.ConfigError, r"user\['rng'\] is of type torch.Tensor"):
                engine.save("there-is-no-such-folder", user={"rng": torch.ones(1)})

    def test_parameters_that_were_replaced_are_missed(self) -> None:
        for plan in ("ddp", "zero3"):
            model = torch.nn.Linear(2, 3)
            with zero.Engine(model, plan) as engine:
                self.assertTrue(self.train(engine, model).applied)
                model.load_state_dict({"weight": torch.ones(3, 2), "bias": torch.ones(3)}, assign=True)
                with self.assertRaisesRegex(zero.StateError, "parameter 'weight' of the model is no longer the one"):
                    self.train(engine, model)


if __name__ == "__main__":
    unittest.main()
