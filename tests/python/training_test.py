"""Trainings under every plan, beside PyTorch's DDP and beside C++."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import transformers
import zero
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from trained import RANK, STAGES, WORLD, Case, loss_of, made, mean_over_ranks, plain_step, stepped, tokens_of, whole

SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=61,
    max_position_embeddings=32,
)
ADAMW = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
STEPS = 4


def llama(tied: bool) -> torch.nn.Module:
    torch.manual_seed(11)
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=tied, initializer_range=0.1)
    return transformers.LlamaForCausalLM(config)


def llama_loss(model: torch.nn.Module, micro_batch: int) -> Tensor:
    ids = torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(micro_batch))
    return model(input_ids=ids, labels=ids).loss


def bits(tensor: Tensor) -> int:
    numbers = tensor.flatten().view(torch.int32).long()
    return (numbers * torch.arange(1, numbers.numel() + 1)).sum().item()


class Llama(Case):
    def under_ddp(self, tied: bool) -> tuple[list[float], list[tuple[str, Tensor]]]:
        model = DistributedDataParallel(llama(tied))
        optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = llama_loss(model, step * WORLD + RANK)
            loss.backward()
            optimizer.step()
            losses.append(mean_over_ranks(loss).item())
        return losses, list(model.module.named_parameters())

    def under(self, plan: str, tied: bool, shard: int = 0) -> tuple[list[float], dict[str, Tensor]]:
        model = llama(tied)
        with zero.Engine(model, plan=plan, optimizer=zero.AdamW(**ADAMW), shard=shard) as engine:
            losses = []
            for _ in range(STEPS):
                llama_loss(model, engine.micro_batch).backward()
                losses.append(engine.step().loss)
            return losses, whole(model)

    def test_trains_as_under_ddp_of_pytorch(self) -> None:
        plans = [(plan, 0) for plan in STAGES]
        if WORLD == 4:
            plans += [("hybrid", 2), ("hybrid-zero2", 2)]
        for tied in (False, True):
            losses, parameters = self.under_ddp(tied)
            first = None
            for plan, shard in plans:
                with self.subTest(plan, tied=tied):
                    ours, state = self.under(plan, tied, shard)
                    for mine, theirs in zip(ours, losses, strict=True):
                        self.assertAlmostEqual(mine, theirs, delta=1e-5)
                    self.expect_close(state, parameters)
                    first = first or (ours, state)
                    self.assertEqual(ours, first[0])
                    self.expect_same(state, first[1])


class TwinOfCpp(Case):
    def test_has_the_bits_of_the_same_program_in_cpp(self) -> None:
        told = Path(os.environ["ZERO_TEST_FOLDER"], "twin").read_text().splitlines()
        mine = []
        for plan in STAGES:
            model = made()
            engine = zero.Engine(model, plan, zero.AdamW(3e-3), clip=1)
            for _ in range(4):
                loss_of(model, tokens_of(engine.micro_batch)).backward()
                report = engine.step()
                mine.append(f"{plan} {report.loss.hex()} {report.grad_norm.hex()}")
            engine.release()
            mine += [f"{plan} {name} {bits(value.detach())}" for name, value in model.named_parameters()]
        self.assertEqual([self.numbers(line) for line in mine], [self.numbers(line[5:]) for line in told])

    def numbers(self, line: str) -> list[object]:
        """Python writes more digits of the same number."""
        return [float.fromhex(word) if word.startswith("0x") else word for word in line.split()]


class Optimizers(Case):
    """Ours beside PyTorch's."""

    def test_step_as_those_of_pytorch(self) -> None:
        rate = dict(lr=2e-3)
        kinds = {
            "AdamW": rate | dict(weight_decay=0.1, amsgrad=True),
            "Adam": rate | dict(betas=(0.8, 0.99), weight_decay=0.1),
            "SGD": rate | dict(momentum=0.9, nesterov=True, weight_decay=0.1),
            "Adagrad": rate | dict(lr_decay=0.1, initial_accumulator_value=0.2),
            "RMSprop": rate | dict(momentum=0.5, centered=True),
            "Adafactor": rate,
        }
        for kind, options in kinds.items():
            with self.subTest(kind):
                plain, model = made(), made()
                theirs = getattr(torch.optim, kind)(plain.parameters(), **options)
                with zero.Engine(model, "zero3", getattr(zero, kind)(**options)) as engine:
                    for step in range(3):
                        loss = plain_step(plain, theirs, step * WORLD)
                        self.assertAlmostEqual(stepped(engine, model), loss, delta=1e-5)
                    self.expect_close(whole(model), plain.named_parameters(), within=3e-5)

    def test_that_pytorch_has_not_step_alike_under_all_plans(self) -> None:
        for optimizer in (zero.Lion(1e-3), zero.Muon(1e-2, rest=zero.AdamW(1e-3)), zero.Lamb(1e-2),
                          zero.AdamW(1e-3, moments="block8", decay_by_lr=False)):
            states = []
            for plan in ("ddp", "zero3"):
                model = made()
                with zero.Engine(model, plan, optimizer) as engine:
                    before = stepped(engine, model)
                    for _ in range(3):
                        after = stepped(engine, model)
                    self.assertLess(after, before + 0.2)
                    states.append(whole(model))
            self.expect_same(*states)


class Settings(Case):
    def test_plans_have_precisions_accumulation_and_tiers(self) -> None:
        disk = zero.Disk([str(self.folder())], block=4096)
        for plan, options in (
            (zero.Plan("zero3", precision="bf16"), {}),
            (zero.Plan("zero2", accumulate=2, reproducible=True), {}),
            (zero.Plan("zero3", offload={"optimizer": "disk"}), {"disk": disk}),
            (zero.Plan("zero3", reduce_in="bf16", resident_budget=1 << 20), {}),
        ):
            with self.subTest(plan):
                model = made()
                with zero.Engine(model, plan, zero.AdamW(1e-2), **options) as engine:
                    losses = []
                    for _ in range(4):
                        for number in range(plan.accumulate):
                            loss_of(model, tokens_of(RANK)).backward()
                            report = engine.step() if number == plan.accumulate - 1 else engine.last_step()
                        self.assertTrue(report.applied)
                        losses.append(report.loss)
                    self.assertLess(losses[-1], losses[0])

    def test_a_disk_gives_the_bits_of_memory(self) -> None:
        states = []
        folder = self.folder()
        for plan, options in (
            (zero.Plan("zero3"), {}),
            (zero.Plan("zero3", offload={"optimizer": ("disk", 1.0), "gradient": "disk", "parameter": "disk"}),
             {"disk": zero.Disk([str(folder)], block=4096)}),
        ):
            model = made()
            with zero.Engine(model, plan, zero.AdamW(1e-2), **options) as engine:
                for _ in range(3):
                    stepped(engine, model)
                states.append(whole(model))
        self.expect_same(*states)

    def test_groups_are_chosen_by_predicates_of_python(self) -> None:
        plain, model = made(), made()
        biases = [p for p in plain.parameters() if p.dim() == 1]
        others = [p for p in plain.parameters() if p.dim() != 1]
        theirs = torch.optim.SGD([dict(params=biases, lr=0.05), dict(params=others, weight_decay=0.3)], lr=0.1)
        groups = [zero.ParamGroup(lambda parameter: len(parameter.shape) == 1, lr_scale=0.5, weight_decay=0.0)]
        with zero.Engine(model, "zero2", zero.SGD(0.1, weight_decay=0.3), groups=groups, group_norms=True) as engine:
            for step in range(3):
                plain_step(plain, theirs, step * WORLD)
                stepped(engine, model)
            self.assertEqual(len(engine.last_step().group_norms), 2)
            self.expect_close(whole(model), plain.named_parameters())

    def test_a_schedule_is_a_function_of_python_or_of_the_library(self) -> None:
        for schedule in (zero.linear_schedule(4), lambda step: 1 - step / 4):
            model = made()
            with zero.Engine(model, "zero3", zero.SGD(0.4), schedule=schedule) as engine:
                rates = []
                for _ in range(3):
                    stepped(engine, model)
                    rates.append(engine.last_step().lr)
            self.assertGreater(rates[0], rates[1])
            self.assertGreater(rates[1], rates[2])
