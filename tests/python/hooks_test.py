"""Hooks of a program's on gradients of an engine's parameters."""

from __future__ import annotations

import torch
import zero
from torch import Tensor
from trained import RANK, Case, loss_of, made, tokens_of, whole


def by_tensor(engine: zero.Engine, loss: Tensor) -> None:
    loss.backward()


def by_engine(engine: zero.Engine, loss: Tensor) -> None:
    engine.backward(loss)


class Hooks(Case):
    def trained(self, plan: str, hook, backward=by_tensor) -> tuple[list[float], dict[str, Tensor]]:
        """Norms and parameters of two steps; hook(model) once the engine is there."""
        model = made()
        with zero.Engine(model, plan, zero.SGD(0.1)) as engine:
            kept = hook(model)
            norms = []
            for _ in range(2):
                backward(engine, loss_of(model, tokens_of(engine.micro_batch)))
                report = engine.step()
                self.assertTrue(report.applied)
                norms.append(report.grad_norm)
            del kept
            return norms, whole(model)

    def test_set_later_lose_no_gradient(self) -> None:
        names = [name for name, _ in made().named_parameters()]

        def accumulated(parameter: Tensor, call):
            return parameter.register_post_accumulate_grad_hook(call)

        def on_node(parameter: Tensor, call):
            node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_: call(parameter))
            return node

        for plan in ("ddp", "zero3"):
            norms, parameters = self.trained(plan, lambda model: None)
            for some in (names[:1], names[-1:], names[-2:], names):
                for way in (accumulated, on_node):
                    for backward in (by_tensor, by_engine):
                        seen = []

                        def hook(model, some=some, way=way, seen=seen):
                            def call(parameter: Tensor) -> None:
                                seen.append(parameter.grad.isfinite().all().item())

                            return [way(p, call) for name, p in model.named_parameters() if name in some]

                        ours = self.trained(plan, hook, backward)
                        self.assertEqual(ours[0], norms)
                        self.expect_same(ours[1], parameters)
                        self.assertEqual(seen, [True] * (2 * len(some)))

    def test_are_taken_away_by_their_handles(self) -> None:
        model = made()
        early, late = [], []
        weight = model.head.weight
        first = weight.register_post_accumulate_grad_hook(lambda p: early.append(p.grad is not None))
        with zero.Engine(model, "zero2", zero.SGD(0.1)) as engine:
            second = weight.register_post_accumulate_grad_hook(lambda p: late.append(p.grad is not None))
            third = weight.register_hook(lambda gradient: None)
            for step in range(3):
                loss_of(model, tokens_of(engine.micro_batch)).backward()
                self.assertGreater(engine.gradient(weight).abs().max().item(), 0)
                self.assertTrue(engine.step().applied)
                (first, second, third)[step].remove()
        self.assertEqual((early, late), ([True], [True, True]))

    def test_numbers_go_on_after_gradients_that_were_emptied(self) -> None:
        model = made()
        with zero.Engine(model, zero.Plan("zero3", accumulate=2), zero.SGD(0.1)) as engine:
            loss_of(model, tokens_of(engine.micro_batch)).backward()
            number = engine.micro_batch
            model.zero_grad()
            self.assertEqual(engine.micro_batch, number)  # it was told, and is of use still
            for _ in range(2):
                loss_of(model, tokens_of(engine.micro_batch)).backward()
            self.assertTrue(engine.step().applied)

    def test_of_its_optimizer_are_called_by_its_steps(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            seen: list[object] = []

            def halved(optimizer, *_):
                optimizer.param_groups[0]["lr"] /= 2
                seen.append(engine.steps)

            engine.optimizer.register_step_pre_hook(halved)
            engine.optimizer.register_step_post_hook(lambda *_: seen.append(engine.last_step().lr))
            for step in (engine.step, engine.optimizer.step):
                loss_of(model, tokens_of(engine.micro_batch)).backward()
                step()
            self.assertEqual(seen, [0, 0.05, 1, 0.025])

    def test_gradients_of_the_programs_own_are_refused(self) -> None:
        for plan in ("ddp", "zero3"):
            model = made()
            with zero.Engine(model, plan, zero.SGD(0.1)) as engine:
                loss = loss_of(model, tokens_of(RANK))
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                with self.assertRaisesRegex(zero.StateError, "a gradient of its own"):
                    engine.step()
                model.zero_grad()
                loss_of(model, tokens_of(engine.micro_batch)).backward()
                self.assertTrue(engine.step().applied)

    def ends(self, plan: str, backward, end) -> None:
        model = made()
        engine = zero.Engine(model, plan, zero.SGD(0.1))
        held = [engine]
        handle = model.head.weight.register_post_accumulate_grad_hook(lambda _: end(held))
        self.addCleanup(held.clear)  # the hook keeps what it refers to
        self.addCleanup(handle.remove)
        loss = loss_of(model, tokens_of(RANK))
        native = engine if backward is by_engine else None
        del engine
        with self.assertRaisesRegex((zero.StateError, RuntimeError), "within (its own|a) backward"):
            backward(native, loss)

    def test_an_engine_that_ends_in_one_is_told_of(self) -> None:
        def release(held: list[zero.Engine]) -> None:
            held[0].release()

        for plan in ("ddp", "zero3"):
            for backward in (by_tensor, by_engine):
                self.ends(plan, backward, lambda held: held[0].close())
                self.ends(plan, backward, release)
            self.ends(plan, by_tensor, lambda held: held.clear())

    def test_an_engine_whose_end_was_refused_trains_on(self) -> None:
        model = made()
        with zero.Engine(model, "zero2", zero.SGD(0.1)) as engine:
            for call in (engine.release, engine.step, engine.discard):
                handle = model.head.weight.register_post_accumulate_grad_hook(lambda _, call=call: call())
                with self.assertRaisesRegex(zero.StateError, "within a backward"):
                    loss_of(model, tokens_of(RANK)).backward()
                handle.remove()
                loss_of(model, tokens_of(RANK)).backward()
                self.assertTrue(engine.step().applied)
