"""Random numbers that a program puts back are drawn again."""

from __future__ import annotations

import torch
import zero
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.checkpoint import checkpoint
from trained import RANK, STAGES, Case, mean_over_ranks


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 8))


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(10 + RANK)
    return torch.randn(8, 6), torch.randn(8, 6)


def cached(model: nn.Module) -> None:
    """The backward of a contrastive loss over embeddings that are computed twice, the second time with gradients."""
    states, embedded = [], []
    torch.manual_seed(77 + RANK)
    for inputs in data():
        rows = []
        for chunk in inputs.split(4):
            states.append((chunk, torch.get_rng_state()))
            with torch.no_grad():
                rows.append(normalize(model(chunk), dim=-1))
        embedded.append(torch.cat(rows).requires_grad_())
    cross_entropy(embedded[0] @ embedded[1].t() * 5, torch.arange(8)).backward()
    for (chunk, state), gradient in zip(states, torch.cat([each.grad for each in embedded]).split(4), strict=True):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            again = normalize(model(chunk), dim=-1)
        (again * gradient).sum().backward()


class RandomNumbers(Case):
    def expect_plain_gradients(self, engine: zero.Engine, model: nn.Module, plain: nn.Module) -> None:
        for parameter, other in zip(model.parameters(), plain.parameters(), strict=True):
            expected = mean_over_ranks(other.grad)
            self.assertLess((engine.gradient(parameter) - expected).abs().max().item(), 1e-5)

    def test_of_a_cached_loss_are_those_of_its_first_forwards(self) -> None:
        plain = made()
        cached(plain)
        for plan in STAGES:
            model = made()
            with zero.Engine(model, plan, zero.SGD(0.1)) as engine:
                cached(model)
                self.expect_plain_gradients(engine, model, plain)

    def test_of_checkpoints_are_those_of_their_forward(self) -> None:
        x = data()[0]

        def backward(model: nn.Module, run) -> None:
            hidden = model[0](x)
            run(model[1:], hidden).square().sum().backward()

        def gradients(run) -> dict[str, Tensor]:
            model = made()
            with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
                backward(model, run)
                return {name: engine.gradient(each) for name, each in model.named_parameters()}

        kept = gradients(lambda layers, hidden: layers(hidden))
        self.expect_same(kept, gradients(lambda *run: checkpoint(*run, use_reentrant=False)))

    def test_of_checkpoints_behind_a_seed_are_the_seeds(self) -> None:
        x = data()[0]

        def backward(model: nn.Module, reentrant: bool) -> None:
            hidden = model[0](x)
            torch.manual_seed(3)
            checkpoint(model[1:], hidden, use_reentrant=reentrant).square().sum().backward()

        for reentrant in (False, True):
            plain, model = made(), made()
            backward(plain, reentrant)
            with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
                backward(model, reentrant)
                self.expect_plain_gradients(engine, model, plain)

    def test_of_checkpoints_that_put_none_back_are_refused(self) -> None:
        x = data()[0]
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            loss = checkpoint(model[1:], model[0](x), use_reentrant=False, preserve_rng_state=False).sum()
            with self.assertRaisesRegex(RuntimeError, "draws random numbers"):
                loss.backward()
            engine.discard()
            model(x).sum().backward()
            self.assertTrue(engine.step().applied)

    def test_are_drawn_again_from_the_same_state(self) -> None:
        x = data()[0]
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)):
            state = torch.get_rng_state()
            with torch.no_grad():
                first = model(x)
            torch.set_rng_state(state)
            self.assertTrue(torch.equal(model(x), first))
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                self.assertTrue(torch.equal(model(x), first))
            self.assertFalse(torch.equal(model(x), first))
