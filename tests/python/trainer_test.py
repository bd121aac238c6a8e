"""transformers' Trainer over an engine, beside transformers' own on one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import trainers
import transformers
import zero
from trained import RANK, STAGES, WORLD, Case, mean_over_ranks, whole
from trainers import Samples, arguments, logged, made
from zero.integrations.transformers import Trainer

# What this process was told by a launcher, and what trainings before have set.
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_", "TORCHELASTIC", "ACCELERATE_")


def alone(folder: Path) -> dict[str, dict[str, list[float]]]:
    """What transformers' own Trainer tells of every case."""
    if RANK == 0:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(TOLD)}
        subprocess.run([sys.executable, trainers.__file__, folder], env=kept, check=True, stdout=subprocess.DEVNULL)
    dist.barrier()
    return json.loads((folder / "alone.json").read_text())


class Ours(trainers.Recorded, Trainer):
    pass


def losses_of(trainer: Ours) -> list[float]:
    return [mean_over_ranks(torch.tensor(loss, dtype=torch.float64)).item() for loss in trainer.losses.values()]


class TrainerCase(Case):
    def built(
        self, folder: Path, model: torch.nn.Module | None = None, plan: Any = "zero3", options: Any = None, **more: Any
    ) -> Ours:
        return Ours(
            model or made(),
            arguments(folder, WORLD, **more),
            train_dataset=Samples(),
            eval_dataset=Samples(),
            zero_plan=plan,
            zero_options=options,
        )

    def trained(self, folder: Path, resume: Path | None = None, **more: Any) -> Ours:
        trainer = self.built(folder, **more)
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        self.addCleanup(trainer.engine.close)
        return trainer

    def expect_near(self, ours: list[float], theirs: list[float], within: float = 1e-5) -> None:
        self.assertEqual(len(ours), len(theirs))
        for mine, other in zip(ours, theirs, strict=True):
            self.assertLess(abs(mine - other), within, f"{ours}\n{theirs}")


class Trains(TrainerCase):
    def test_as_on_one_process(self) -> None:
        folder = self.folder()
        expected = alone(folder)
        for name, case in trainers.CASES.items():
            if WORLD > 1 and case.get("average_tokens_across_devices") is False:
                continue  # means of ranks that have other numbers of tokens are not one process's
            with self.subTest(name):
                trainer = self.trained(folder, **case)
                self.expect_near(losses_of(trainer), expected[name]["loss"])
                for each in ("eval_loss", "learning_rate"):
                    self.expect_near(logged(trainer, each), expected[name][each])
                if expected[name]["grad_norm"]:
                    self.expect_near(logged(trainer, "grad_norm"), expected[name]["grad_norm"], 1e-4)

    def test_with_the_same_bits_under_every_plan(self) -> None:
        folder = self.folder()
        for more in ({}, {"bf16": True}):
            losses = [losses_of(self.trained(folder, plan=plan, **more)) for plan in STAGES]
            self.assertEqual(losses, losses[:1] * len(STAGES))

    def test_in_half_precision_near_fp32(self) -> None:
        folder = self.folder()
        wide = losses_of(self.trained(folder))
        options = {"loss_scale": zero.LossScale(64.0)}
        for precision in ("bf16", "fp16"):
            self.expect_near(losses_of(self.trained(folder, options=options, **{precision: True})), wide, 0.05)

    def test_steps_that_overflow_are_none_of_the_schedule(self) -> None:
        scale = zero.LossScale(2.0**30, hysteresis=1)
        trainer = self.trained(self.folder(), options={"loss_scale": scale}, fp16=True)
        self.assertGreater(trainer.engine.skipped_steps, 0)
        self.assertEqual(trainer.lr_scheduler.last_epoch, trainer.state.global_step - trainer.engine.skipped_steps)

    def test_with_activations_computed_again(self) -> None:
        folder = self.folder()
        losses = losses_of(self.trained(folder))
        again = self.trained(folder, gradient_checkpointing=True)
        self.assertEqual(losses_of(again), losses)
        within = self.trained(folder, plan=zero.Plan("zero3", activation_budget="50%"))
        self.assertEqual(losses_of(within), losses)
        self.assertGreater(within.engine.activations.recomputations, 0)

    def test_once_more(self) -> None:
        trainer = self.trained(self.folder(), max_steps=2)
        steps = trainer.engine.steps
        trainer.train()
        self.assertEqual((steps, trainer.engine.steps), (2, 4))

    def test_a_model_made_anew(self) -> None:
        trainer = Ours(
            args=arguments(self.folder(), WORLD, max_steps=2, eval_strategy="no"),
            model_init=lambda: made(),
            train_dataset=Samples(),
            zero_optimizer=zero.Lion(1e-3),
        )
        losses = []
        for _ in range(2):
            trainer.train()
            losses.append(logged(trainer, "loss"))
        self.addCleanup(trainer.engine.close)
        self.assertEqual(*losses)


class Saves(TrainerCase):
    def test_and_goes_on_to_the_bit(self) -> None:
        for more in ({}, {"bf16": True, "gradient_accumulation_steps": 3}):
            folder = self.folder()
            straight = self.trained(folder / "straight", save_strategy="steps", save_steps=3, **more)
            resumed = self.trained(
                folder / "resumed", folder / "straight/checkpoint-3", model=made(99), plan="zero1", **more
            )
            self.assertEqual(losses_of(resumed), losses_of(straight)[3:])
            self.assertEqual(logged(resumed, "learning_rate"), logged(straight, "learning_rate"))
            self.expect_same(whole(resumed.model), whole(straight.model))

    def test_what_from_pretrained_reads(self) -> None:
        for tied in (False, True):
            folder = self.folder()
            trainer = self.trained(folder, model=made(tie_word_embeddings=tied), bf16=True, max_steps=2)
            trainer.save_model(folder / "saved")
            trainer.model.save_pretrained(folder / "pretrained")
            main = {name: trainer.engine.main_parameter(value) for name, value in trainer.model.named_parameters()}
            dist.barrier()
            for each in ("saved", "pretrained"):
                read = transformers.LlamaForCausalLM.from_pretrained(folder / each)
                self.assertEqual({value.dtype for value in read.parameters()}, {torch.float32})
                self.expect_same(dict(read.named_parameters()), main)

    def test_the_best_and_brings_it_back(self) -> None:
        more = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 2, "save_steps": 2, "max_steps": 6}
        for only in (False, True):
            folder = self.folder()
            trainer = self.trained(folder, load_best_model_at_end=True, save_only_model=only, learning_rate=1.0, **more)
            told = logged(trainer, "eval_loss")
            self.assertLess(min(told), told[-1])  # it was not the last
            self.assertEqual(trainer.evaluate()["eval_loss"], min(told))

    def test_weights_alone_which_training_begins_from(self) -> None:
        folder = self.folder()
        first = self.trained(folder, save_strategy="steps", save_steps=2, save_only_model=True, max_steps=2)
        again = self.built(folder, model=made(99))
        again._load_from_checkpoint(str(folder / "checkpoint-2"))
        self.expect_same(whole(again.model), whole(first.model))

    def test_predictions_of_every_rank(self) -> None:
        trainer = self.trained(self.folder(), max_steps=2)
        predicted = trainer.predict(Samples())
        self.assertEqual(predicted.predictions.shape, (trainers.SAMPLES, trainers.LENGTH, trainers.WORDS))


class Refuses(TrainerCase):
    def expect_refusal(self, words: str, **named: Any) -> None:
        with self.subTest(words), self.assertRaisesRegex(zero.ConfigError, words):
            self.built(self.folder(), **named)

    def test_by_name(self) -> None:
        self.expect_refusal("`auto_find_batch_size`", auto_find_batch_size=True)
        self.expect_refusal("`bf16_full_eval`.*bf16=True", bf16_full_eval=True)
        self.expect_refusal("`torch_compile`", torch_compile=True)
        self.expect_refusal(
            "accumulates 2 .*`gradient_accumulation_steps`.* is 1", plan=zero.Plan("zero3", accumulate=2)
        )
        self.expect_refusal("`bf16` .*'fp32'", plan=zero.Plan("zero3"), bf16=True)

    def test_optimizers_that_it_has_not(self) -> None:
        trainer = self.built(self.folder(), optim="adafactor")
        with self.assertRaisesRegex(zero.ConfigError, "`optim` .*'adafactor'.*Adafactor .*`zero_optimizer`"):
            trainer.train()
        model, args = made(), arguments(self.folder(), WORLD, eval_strategy="no")
        for given in ((torch.optim.SGD(model.parameters(), 0.1), None), (None, object())):
            with self.assertRaisesRegex(zero.ConfigError, "`optimizers` were given"):
                Trainer(model, args, optimizers=given)

    def test_options_that_the_arguments_say(self) -> None:
        for name in ("clip", "ignored"):
            with self.assertRaisesRegex(zero.ConfigError, f"`zero_options` has '{name}'"):
                Trainer(made(), arguments(self.folder(), WORLD), zero_options={name: 1})

    def test_checkpoints_of_another_optimizer(self) -> None:
        folder = self.folder()
        if RANK == 0:
            (folder / "optimizer.pt").write_text("")
        dist.barrier()
        with self.assertRaisesRegex(zero.ConfigError, "has the state of an optimizer of torch.optim"):
            self.built(folder)._load_from_checkpoint(str(folder))
