"""An engine beside what PyTorch has: schedules, files, scopes, threads."""

from __future__ import annotations

import collections
import copy
import gc
import io
import pickle
import threading
import weakref

import torch
import torch.distributed as dist
import zero
from trained import RANK, STAGES, WORLD, Case, loss_of, made, mean_over_ranks, plain_step, stepped, tokens_of, whole


class AsAnOptimizer(Case):
    def test_schedules_of_pytorch_set_its_rate(self) -> None:
        plain, model = made(), made()
        theirs = torch.optim.AdamW(plain.parameters(), 2e-2)
        with zero.Engine(model, "zero3", zero.AdamW(2e-2)) as engine:
            schedules = [
                torch.optim.lr_scheduler.SequentialLR(
                    optimizer,
                    [
                        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
                        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4),
                    ],
                    [2],
                )
                for optimizer in (theirs, engine.optimizer)
            ]
            for step in range(5):
                loss = plain_step(plain, theirs, step * WORLD)
                engine.optimizer.zero_grad()
                loss_of(model, tokens_of(engine.micro_batch)).backward()
                engine.optimizer.step()
                self.assertAlmostEqual(engine.last_step().loss, loss, delta=1e-5)
                self.assertEqual(engine.last_step().lr, theirs.param_groups[0]["lr"])
                for schedule in schedules:
                    schedule.step()
            self.expect_close(whole(model), plain.named_parameters(), within=3e-5)

    def test_closures_and_emptied_gradients_are_as_in_pytorch(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            before = whole(model)
            loss_of(model, tokens_of(RANK)).backward()
            engine.optimizer.zero_grad()
            model.zero_grad()

            def closure():
                loss = loss_of(model, tokens_of(RANK))
                loss.backward()
                return loss

            loss = engine.optimizer.step(closure)
            self.assertAlmostEqual(mean_over_ranks(loss).item(), engine.last_step().loss, delta=1e-6)
            plain = made()
            plain_step(plain, torch.optim.SGD(plain.parameters(), 0.1), 0)
            self.expect_close(whole(model), plain.named_parameters())
            self.assertFalse(torch.equal(before["head.weight"], whole(model)["head.weight"]))

    def test_a_rate_is_set_for_all_groups(self) -> None:
        model = made()
        groups = [zero.ParamGroup(lambda parameter: parameter.norm, lr_scale=0.5)]
        with zero.Engine(model, "zero3", zero.SGD(0.1), groups=groups) as engine:
            self.assertEqual(sorted(group["lr"] for group in engine.optimizer.param_groups), [0.05, 0.1])
            engine.set_lr(0.4)
            self.assertEqual(sorted(group["lr"] for group in engine.optimizer.param_groups), [0.2, 0.4])
            stepped(engine, model)
            self.assertEqual(engine.last_step().lr, 0.4)

    def test_what_it_cannot_do_is_refused(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            optimizer = engine.optimizer
            for call in (optimizer.state_dict, lambda: optimizer.load_state_dict({}),
                         lambda: optimizer.add_param_group({"params": []})):
                with self.assertRaises(zero.StateError):
                    call()
            optimizer.param_groups[0]["betas"] = (0.9, 0.99)
            with self.assertRaisesRegex(zero.ConfigError, "betas"):
                optimizer.step()
            del optimizer.param_groups[0]["betas"]
            optimizer.param_groups[0]["momentum"] = 0.9
            loss_of(model, tokens_of(RANK)).backward()
            with self.assertRaisesRegex(zero.ConfigError, "momentum"):
                optimizer.step()

    def test_its_groups_stay_those_of_the_engine(self) -> None:
        def changed(change, why: str) -> None:
            model = made()
            with zero.Engine(model, "zero3", zero.AdamW(0.1)) as engine:
                change(engine.optimizer.param_groups)
                with self.subTest(why), self.assertRaisesRegex(zero.ConfigError, why):
                    stepped(engine, model)

        changed(lambda groups: groups.append({"params": [torch.ones(1)], "lr": 1.0}), "groups .* were added")
        changed(lambda groups: groups.clear(), "groups .* were added, removed")
        changed(lambda groups: groups[0]["params"].pop(), "parameters of them")
        changed(lambda groups: groups[0]["params"].__setitem__(0, torch.ones(1)), "parameters of them")
        changed(lambda groups: groups[0].pop("betas"), "betas was taken out")
        changed(lambda groups: groups[0].update(maximize=True), "maximize")
        model = made()
        with zero.Engine(model, "zero3", zero.AdamW(0.1)) as engine:
            engine.optimizer.param_groups[0].update(maximize=False, name="all")
            engine.optimizer.param_groups[0]["params"].reverse()
            stepped(engine, model)

    def test_its_state_is_the_engines(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.AdamW(0.1)) as engine:
            optimizer, weight = engine.optimizer, model.head.weight
            stepped(engine, model)
            self.assertEqual((len(optimizer.state), list(optimizer.state.items())), (0, []))
            for use in (
                lambda: optimizer.state[weight],
                lambda: optimizer.state.clear(),
                lambda: optimizer.state.update({weight: {}}),
                lambda: setattr(optimizer, "state", collections.defaultdict(dict)),
            ):
                with self.assertRaisesRegex(zero.StateError, "state of an engine's optimizer is the engine's"):
                    use()
            for use in (lambda: copy.deepcopy(optimizer), lambda: pickle.dumps(optimizer)):
                with self.assertRaisesRegex(zero.StateError, "neither copied nor pickled"):
                    use()

    def test_what_is_set_in_its_groups_is_followed(self) -> None:
        plain, model = made(), made()
        theirs = torch.optim.AdamW(plain.parameters(), 2e-2)
        with zero.Engine(model, "zero3", zero.AdamW(2e-2)) as engine:
            self.assertEqual(engine.optimizer.param_groups[0]["betas"], (0.9, 0.999))
            schedules = [
                torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=6)  # of betas too
                for optimizer in (theirs, engine.optimizer)
            ]
            for step in range(4):
                plain_step(plain, theirs, step * WORLD)
                stepped(engine, model)
                for schedule in schedules:
                    schedule.step()
                for optimizer in (theirs, engine.optimizer):
                    optimizer.param_groups[0]["weight_decay"] = 0.1 * step
            self.assertNotEqual(engine.optimizer.param_groups[0]["betas"], (0.9, 0.999))
            self.expect_close(whole(model), plain.named_parameters(), within=3e-5)


class Gradients(Case):
    def test_are_the_mean_over_ranks(self) -> None:
        plain = made()
        loss_of(plain, tokens_of(RANK)).backward()
        for plan in STAGES:
            model = made()
            with zero.Engine(model, plan, zero.SGD(0.1)) as engine:
                loss_of(model, tokens_of(RANK)).backward()
                for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                    self.assertLess((engine.gradient(ours) - mean_over_ranks(theirs.grad)).abs().max().item(), 1e-6)

    def test_can_be_changed_where_they_lie(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            loss_of(model, tokens_of(RANK)).backward()
            named = set()

            def clamp(name: str, begin: int, total: torch.Tensor, scale: float) -> None:
                named.add(name)
                total.clamp_(-1e-3 / scale, 1e-3 / scale)

            engine.for_each_gradient_slice(clamp)
            self.assertTrue(named)
            largest = max(engine.gradient(parameter).abs().max().item() for parameter in model.parameters())
            self.assertAlmostEqual(largest, 1e-3, delta=1e-8)

    def test_end_with_the_call_that_they_are_given_to(self) -> None:
        for plan in STAGES:
            model = made()
            kept = []
            with zero.Engine(model, plan, zero.SGD(0.1)) as engine:
                loss_of(model, tokens_of(RANK)).backward()
                engine.for_each_gradient_slice(lambda name, begin, total, scale: kept.extend((total, total[:1])))
                self.assertTrue(kept)
                engine.step()
            for each in kept:
                with self.assertRaisesRegex(RuntimeError, "clone what is to be kept"):
                    each.sum()
                with self.assertRaisesRegex(RuntimeError, "clone what is to be kept"):
                    each.zero_()

    def test_are_shown_without_values(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)):
            loss_of(model, tokens_of(RANK)).backward()
            self.assertIsNotNone(model.head.weight.grad)
            with self.assertRaises(RuntimeError):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


class Scopes(Case):
    def test_keep_what_was_written(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            with zero.gather(model.parameters()), torch.no_grad():
                model.head.weight.fill_(0.25)
            self.assertTrue((whole(model)["head.weight"] == 0.25).all())
            with zero.gather(model.head.bias, from_rank=0), torch.no_grad():
                model.head.bias.fill_(RANK + 1.0)
            self.assertTrue((whole(model)["head.bias"] == 1).all())
            stepped(engine, model)

    def test_drop_what_was_written_when_left_by_an_exception(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            before = whole(model)
            with self.assertRaises(KeyError), zero.gather(model.parameters()), torch.no_grad():
                model.head.weight.fill_(0.25)
                raise KeyError
            self.expect_same(before, whole(model))
            stepped(engine, model)

    def test_hold_a_state_dict_that_others_load(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            stepped(engine, model)
            with zero.gather(model.parameters()):
                state = {name: value.clone() for name, value in model.state_dict().items()}
        plain = made(seed=6)
        plain.load_state_dict(state)
        again = made(seed=6)
        with zero.Engine(again, "zero2", zero.SGD(0.1)):
            with zero.gather(again.parameters()):
                again.load_state_dict(state)
            self.expect_same(whole(again), {name: p.detach() for name, p in plain.named_parameters()})

    def test_have_parameters_in_storages_of_their_own(self) -> None:
        for plan in STAGES:
            model = made()
            with zero.Engine(model, plan, zero.SGD(0.1)) as engine:
                stepped(engine, model)
                with zero.gather(model.parameters()):
                    pointers = set()
                    for parameter in model.parameters():
                        storage = parameter.untyped_storage()
                        pointers.add(storage.data_ptr())
                        self.assertEqual(storage.nbytes(), parameter.nbytes)
                        self.assertEqual(parameter.storage_offset(), 0)
                        sizes = []
                        for tensor in (parameter.detach(), parameter.detach().clone()):
                            file = io.BytesIO()
                            torch.save(tensor, file)
                            sizes.append(len(file.getvalue()))
                        self.assertEqual(*sizes)
                    self.assertEqual(len(pointers), len(list(model.parameters())))

    def test_errors_are_of_their_own_classes(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            with self.assertRaises(zero.StateError):
                engine.gradient(model.head.weight)
            loss_of(model, tokens_of(RANK)).backward()
            with zero.gather(model.parameters()):
                with self.assertRaises(zero.StateError):
                    engine.step()
            with self.assertRaises(zero.ConfigError):
                engine.backward(torch.ones(3))
            with self.assertRaisesRegex(RuntimeError, "gather"), torch.no_grad():
                model.head.weight.fill_(0)
        self.assertTrue(issubclass(zero.StateError, zero.Error) and issubclass(zero.Error, RuntimeError))
        with self.assertRaisesRegex(zero.StateError, "has ended"):
            engine.step()


class Files(Case):
    def test_go_on_under_another_plan_with_the_bits_of_one_run(self) -> None:
        folder = self.folder()
        zero.prepare_checkpoints(folder)
        model = made()
        with zero.Engine(model, "zero3", zero.AdamW(1e-2)) as engine:
            for _ in range(2):
                stepped(engine, model)
            told = engine.save(folder, user={"epoch": 3}, tensors={f"order {RANK}": torch.arange(RANK + 2)})
            for _ in range(2):
                stepped(engine, model)
            expected = whole(model)
        self.assertEqual(zero.checkpoint_steps(folder), [2])
        found = zero.find_checkpoint(folder)
        self.assertEqual((found.folder, found.step, found.user), (told, 2, {"epoch": 3}))
        other = made(seed=6)
        with zero.Engine(other, "zero1", zero.AdamW(1e-2)) as engine:
            restored = engine.load(folder)
            self.assertEqual((restored.step, restored.user), (2, {"epoch": 3}))
            for rank in range(WORLD):
                self.assertTrue(torch.equal(restored.tensors[f"order {rank}"], torch.arange(rank + 2)))
            for _ in range(2):
                stepped(engine, other)
            self.expect_same(whole(other), expected)
            with self.assertRaises(zero.CheckpointError):
                engine.load(folder / "nothing")

    def test_are_written_behind_training(self) -> None:
        folder = self.folder()
        model = made()
        with zero.Engine(model, "zero2", zero.AdamW(1e-2)) as engine:
            stepped(engine, model)
            engine.save(folder, background=True)
            self.assertTrue(engine.finish_save().endswith("step-000001"))


class Lives(Case):
    def test_an_engine_gives_the_module_back(self) -> None:
        model = made()
        engine = zero.Engine(model, "zero3", zero.SGD(0.1))
        stepped(engine, model)
        expected = whole(model)
        engine.release()
        self.expect_same({name: p.detach() for name, p in model.named_parameters()}, expected)
        loss_of(model, tokens_of(RANK)).backward()
        self.assertEqual(model.head.weight.grad.shape, model.head.weight.shape)

    def test_an_engine_for_each_step_loses_nothing_in_16_bits(self) -> None:
        plan = zero.Plan("zero3", precision="bf16")
        values = []
        for engines in (1, 4):
            model = made()
            for engine in range(engines):
                each = zero.Engine(model, plan, zero.SGD(1e-4))
                for step in range(4 // engines):
                    each.backward(loss_of(model, tokens_of((engine + step) * WORLD + RANK)))
                    each.step()
                each.release()
            values.append({name: p.detach().clone() for name, p in model.named_parameters()})
        self.expect_same(*values)
        self.assertEqual(model.head.weight.dtype, torch.float32)
        each = zero.Engine(model, plan, zero.SGD(1e-4))
        each.release(computed=True)
        self.assertEqual(model.head.weight.dtype, torch.bfloat16)

    def test_an_engine_ends_with_its_last_reference(self) -> None:
        model = made()
        engine = zero.Engine(model, "zero3", zero.SGD(0.1), schedule=lambda step: 1.0)
        stepped(engine, model)
        self.assertEqual(len(engine.optimizer.param_groups), 1)
        gone = weakref.ref(engine)
        del engine
        gc.collect()
        self.assertIsNone(gone())
        with zero.Engine(made(), "zero3", zero.SGD(0.1)):
            pass

    def test_other_threads_run_while_an_engine_waits(self) -> None:
        """Rank 0 comes late: only when a thread of rank 1, whose main thread waits for it, has answered often."""
        if WORLD == 1:
            self.skipTest("nobody to wait for")
        store = dist.distributed_c10d._get_default_store()
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            loss_of(model, tokens_of(RANK)).backward()
            if RANK == 0:
                for number in range(300):
                    store.set(f"ask {number}", "")
                    store.get(f"answer {number}")
            answers = threading.Thread(target=lambda: [
                (store.get(f"ask {number}"), store.set(f"answer {number}", "")) for number in range(300)
            ])
            if RANK == 1:
                answers.start()
            self.assertTrue(engine.step().applied)
            if RANK == 1:
                answers.join()
