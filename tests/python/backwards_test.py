"""Backwards by every way that PyTorch has."""

from __future__ import annotations

import torch
import zero
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from trained import RANK, Case, loss_of, made, mean_over_ranks, tokens_of, whole


def by_tensor(loss: Tensor) -> None:
    loss.backward()


class Backwards(Case):
    def gradients(self, backward, plan: str = "zero3") -> tuple[float, dict[str, Tensor]]:
        """Of one step, with the loss that it reports."""
        model = made()
        with zero.Engine(model, plan, zero.SGD(0.1)) as engine:
            backward(engine, model)
            gradients = {name: engine.gradient(p) for name, p in model.named_parameters()}
            return engine.step().loss, gradients

    def expect_same_backwards(self, *backwards) -> None:
        first = self.gradients(backwards[0])
        for backward in backwards[1:]:
            loss, gradients = self.gradients(backward)
            self.assertEqual(loss, first[0])
            self.expect_same(gradients, first[1])

    def test_of_one_loss_are_the_same_by_all_names(self) -> None:
        def loss(model):
            return loss_of(model, tokens_of(RANK))

        self.expect_same_backwards(
            lambda engine, model: engine.backward(loss(model)),
            lambda engine, model: loss(model).backward(),
            lambda engine, model: torch.autograd.backward(loss(model)),
            lambda engine, model: torch.autograd.backward([loss(model)], [torch.tensor(1.0)]),
            lambda engine, model: engine.scale(loss(model)).backward(),
            lambda engine, model: loss(model).backward(inputs=list(model.parameters())),
        )

    def test_of_several_losses_are_that_of_their_sum(self) -> None:
        def both(model):
            return loss_of(model, tokens_of(RANK)), loss_of(model, tokens_of(RANK + 9))

        def summed(engine, model):
            a, b = both(model)
            (a.double() + 2 * b.double()).backward()

        (loss, gradients), (expected, theirs) = (
            self.gradients(lambda engine, model: torch.autograd.backward(both(model), [None, torch.tensor(2.0)])),
            self.gradients(summed),
        )
        self.assertAlmostEqual(loss, expected, delta=1e-12)
        self.expect_close(gradients, theirs.items(), within=1e-7)

    def test_of_chosen_inputs_leave_the_others_alone(self) -> None:
        def chosen(engine, model):
            loss_of(model, tokens_of(RANK)).backward(inputs=[model.head.weight])

        _, gradients = self.gradients(chosen)
        for name, gradient in gradients.items():
            self.assertEqual(gradient.abs().max().item() > 0, name == "head.weight", name)

    def test_by_grad_are_the_programs_own(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            loss = loss_of(model, tokens_of(RANK))
            (penalty,) = torch.autograd.grad(loss, model.head.bias, create_graph=True)
            self.assertIsNone(model.head.bias.grad)
            (loss + penalty.square().sum()).backward()
            plain = made()
            theirs = loss_of(plain, tokens_of(RANK))
            (expected,) = torch.autograd.grad(theirs, plain.head.bias, create_graph=True)
            (theirs + expected.square().sum()).backward()
            for (name, ours), other in zip(model.named_parameters(), plain.parameters(), strict=True):
                self.assertLess((engine.gradient(ours) - mean_over_ranks(other.grad)).abs().max().item(), 1e-6, name)

    def test_pass_checkpoints(self) -> None:
        def recomputed(reentrant: bool):
            def backward(engine, model):
                tokens = tokens_of(RANK)
                x = model.table(tokens[:, :8])
                for block in model.blocks:
                    x = checkpoint(block, x, use_reentrant=reentrant)
                logits = model.head(x).flatten(0, 1)
                torch.nn.functional.cross_entropy(logits, tokens[:, 1:9].flatten()).backward()

            return backward

        self.expect_same_backwards(
            lambda engine, model: loss_of(model, tokens_of(RANK)).backward(), recomputed(False), recomputed(True)
        )

    def test_of_what_is_no_loss_are_refused(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            before = whole(model)
            edge = torch.autograd.graph.get_gradient_edge(loss_of(model, tokens_of(RANK)))
            with self.assertRaisesRegex(zero.StateError, "no loss"):
                torch.autograd.backward(edge, torch.tensor(1.0))
            self.expect_same(before, whole(model))
            loss_of(model, tokens_of(RANK)).backward()
            self.assertTrue(engine.step().applied)

    def test_that_fail_leave_the_engine_ready(self) -> None:
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise KeyError("a fault of the program")

        model = made()
        with zero.Engine(model, "zero2", zero.SGD(0.1)) as engine:
            with self.assertRaisesRegex(KeyError, "a fault of the program"):
                Fails.apply(loss_of(model, tokens_of(RANK))).backward()
            loss_of(model, tokens_of(RANK)).backward()
            self.assertTrue(engine.step().applied)

    def test_of_other_models_are_pytorchs(self) -> None:
        other = torch.nn.Linear(3, 1)
        other(torch.ones(2, 3)).sum().backward()
        self.assertTrue(torch.equal(other.bias.grad, torch.tensor([2.0])))

    def test_on_other_threads_of_the_engines_model_are_refused(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        model = made()
        with zero.Engine(model, "ddp", zero.SGD(0.1)), ThreadPoolExecutor(1) as threads:
            with self.assertRaises(RuntimeError):
                threads.submit(lambda: loss_of(model, tokens_of(RANK)).backward()).result()
