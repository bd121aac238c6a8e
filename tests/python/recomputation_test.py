"""Checkpoints of activations: the bits of doing without, in every precision, with dropout."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
import zero
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from trained import STAGES, Block, Case

Run = Callable[..., Tensor]
WIDTH = 24


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, dropout=0.1, batch_first=True)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.block(x))
        return x + self.attention(x, x, x, need_weights=False)[0]


class Stack(nn.Module):
    """Its layers run by `self.again`, where that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, again: Callable[[Stack, Tensor], Tensor]) -> Tensor:
        return self.head(again(self, x))


def kept(stack: Stack, x: Tensor) -> Tensor:
    x = stack.first(x)
    for layer in stack.layers:
        x = layer(x)
    return x


def each(**how: object) -> Callable[[Stack, Tensor], Tensor]:
    def run(stack: Stack, x: Tensor) -> Tensor:
        x = stack.first(x)
        for layer in stack.layers:
            x = checkpoint(layer, x, **how)
        return x

    return run


def first_too(**how: object) -> Callable[[Stack, Tensor], Tensor]:
    def run(stack: Stack, x: Tensor) -> Tensor:
        return checkpoint(lambda y: kept(stack, y), x.clone().requires_grad_(), **how)

    return run


def nested(**how: object) -> Callable[[Stack, Tensor], Tensor]:
    def run(stack: Stack, x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            for layer in stack.layers[:2]:
                y = checkpoint(layer, y, **how)
            return y

        return stack.layers[2](checkpoint(inner, stack.first(x), **how))

    return run


class Recomputation(Case):
    def trained(
        self, plan: zero.Plan, again: Callable[[Stack, Tensor], Tensor], shape: tuple[int, int] = (3, 7), steps: int = 2
    ) -> dict[str, Tensor]:
        torch.manual_seed(4)
        stack = Stack()
        with zero.Engine(stack, plan, zero.AdamW(1e-3), loss_scale=zero.LossScale(initial=64)) as engine:
            for _ in range(steps):
                torch.manual_seed(engine.micro_batch)
                loss = stack(torch.randn(*shape, 6), again).float().square().mean()
                engine.scale(loss).backward()
                self.assertTrue(engine.step().applied)
            with zero.gather(stack.parameters()):
                return {name: each.detach().clone() for name, each in stack.named_parameters()}

    def test_within_a_budget_has_the_bits_of_doing_without(self) -> None:
        for number, precision in enumerate(("fp32", "bf16", "fp16", "fp8")):
            large = {"shape": (32, 48), "steps": 4}
            expected = self.trained(zero.Plan(STAGES[number], precision=precision), kept, **large)
            for budget in ("80%", "55%"):
                plan = zero.Plan(STAGES[(number + 3) % 4], precision=precision, activation_budget=budget)
                with self.subTest(precision=precision, budget=budget):
                    self.expect_same(expected, self.trained(plan, kept, **large))

    def test_has_the_bits_of_doing_without(self) -> None:
        for number, precision in enumerate(("fp32", "bf16", "fp16", "fp8")):
            plan = zero.Plan(STAGES[(number + 3) % 4], precision=precision)
            expected = self.trained(plan, kept)
            for way in (each, first_too, nested):
                for reentrant in (False, True):
                    with self.subTest(precision=precision, way=way.__name__, reentrant=reentrant):
                        self.expect_same(expected, self.trained(plan, way(use_reentrant=reentrant)))

    def test_of_losses_in_pieces_is_close_to_the_whole(self) -> None:
        x, y = torch.randn(3, 7, WIDTH), torch.randint(50, (3, 7))
        y[1, 2] = -100

        def trained(loss_of: Callable[[nn.Linear, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            torch.manual_seed(4)
            layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 50))
            with zero.Engine(layers, zero.Plan("zero3"), zero.AdamW(1e-3)) as engine:
                loss = loss_of(layers[1], layers[0](x))
                loss.backward()
                self.assertTrue(engine.step().applied)
                with zero.gather(layers.parameters()):
                    return loss.detach(), layers[1].weight.detach().clone()

        def whole(head: nn.Linear, hidden: Tensor) -> Tensor:
            return nn.functional.cross_entropy(head(hidden).flatten(0, 1), y.flatten())

        def parts(head: nn.Linear, hidden: Tensor) -> Tensor:
            return zero.cross_entropy(hidden, head.weight, y, bias=head.bias, pieces=4)

        for expected, found in zip(trained(whole), trained(parts), strict=True):
            torch.testing.assert_close(expected, found)
        with self.assertRaisesRegex(zero.ConfigError, "no reduction 'none'"):
            zero.cross_entropy(x, torch.zeros(50, WIDTH), y, reduction="none")

    def test_of_transformers_has_the_bits_of_doing_without(self) -> None:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
        config = transformers.LlamaConfig(
            **sizes, vocab_size=61, attention_dropout=0.1, attn_implementation="eager", use_cache=False
        )

        def trained(reentrant: bool | None = None, budget: str | None = None) -> dict[str, Tensor]:
            torch.manual_seed(4)
            model = transformers.LlamaForCausalLM(config).train()
            if reentrant is not None:
                model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            plan = zero.Plan("zero3", precision="bf16", activation_budget=budget)
            with zero.Engine(model, plan, zero.AdamW(1e-3)) as engine:
                for _ in range(3):
                    torch.manual_seed(engine.micro_batch)
                    tokens = torch.randint(61, (2, 32))
                    output = model(input_ids=tokens, labels=tokens)
                    read = zero.keep(output.logits).detach()
                    output.loss.backward()
                    self.assertTrue(read.float().numpy().any())
                    self.assertTrue(engine.step().applied)
                if budget is not None:
                    report = engine.activations
                    self.assertGreater(report.recomputations, 0)
                    self.assertLessEqual(report.peak_bytes, report.budget_bytes)
                    self.assertLess(report.peak_bytes, 0.6 * report.unlimited_bytes)
                with zero.gather(model.parameters()):
                    return {name: each.detach().clone() for name, each in model.named_parameters()}

        expected = trained()
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                self.expect_same(expected, trained(reentrant))
        self.expect_same(expected, trained(budget="50%"))
