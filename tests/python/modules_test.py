"""What engines see of modules, and what they refuse."""

from __future__ import annotations

import torch
import zero
from torch import nn
from trained import RANK, WORLD, Case, loss_of, made, plain_step, stepped, tokens_of, whole


class RMSNormalised(nn.Sequential):
    """A container by its base, and a norm by its name."""

    def __init__(self, *modules: nn.Module):
        super().__init__(*modules)
        self.gain = nn.Parameter(torch.ones(1))


class Rows(nn.EmbeddingBag):
    pass


class Described(Case):
    def test_subclasses_are_what_their_bases_are(self) -> None:
        model = nn.Module()
        model.stack = RMSNormalised(nn.Linear(4, 4), nn.Linear(4, 4))
        model.rows = Rows(5, 4)
        model.tables = nn.ModuleDict({"a": nn.Embedding(5, 4)})
        parameters, modules = {}, {}

        def seen(parameter: zero.ParameterInfo) -> bool:
            parameters[parameter.name] = (parameter.embedding, parameter.norm, parameter.shape)
            return False

        def unit(module: zero.ModuleInfo) -> bool:
            modules[module.name] = (module.type, module.container, module.in_container, module.numel)
            return module.in_container

        with zero.Engine(model, "zero3", zero.SGD(0.1), full_precision=seen, units=unit):
            pass
        self.assertEqual(parameters["stack.gain"], (False, True, [1]))
        self.assertEqual(parameters["rows.weight"], (True, False, [5, 4]))
        self.assertEqual(parameters["tables.a.weight"], (True, False, [5, 4]))
        self.assertEqual(parameters["stack.1.bias"], (False, False, [4]))
        self.assertEqual(modules["stack"], ("RMSNormalised", True, False, 41))
        self.assertEqual(modules["rows"], ("Rows", False, False, 20))
        self.assertEqual(modules["tables.a"], ("Embedding", False, True, 20))

    def test_units_are_chosen_by_type(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1), units=zero.units_of_types(["Block"])) as engine:
            stepped(engine, model)
        with self.assertRaisesRegex(zero.ConfigError, "takes no module"):
            zero.Engine(made(), "zero3", zero.SGD(0.1), units=zero.units_of_types(["Blocks"]))

    def test_shared_modules_and_parameters_are_one(self) -> None:
        def tied():
            model = made()
            model.head = nn.Linear(24, 31, bias=False)
            model.head.weight = model.table.weight
            model.blocks[2] = model.blocks[0]
            return model

        plain, model = tied(), tied()
        theirs = torch.optim.SGD(plain.parameters(), 0.1)
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            for step in range(3):
                self.assertAlmostEqual(stepped(engine, model), plain_step(plain, theirs, step * WORLD), delta=1e-5)
            self.expect_close(whole(model), plain.named_parameters())

    def test_frozen_parameters_and_buffers_stay(self) -> None:
        def with_buffers():
            model = made()
            model.table.weight.requires_grad_(False)
            model.register_buffer("scale", torch.full((31,), 0.5), persistent=False)
            return model

        plain, model = with_buffers(), with_buffers()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            stepped(engine, model)
            ours = whole(model)
        self.assertTrue(torch.equal(ours["table.weight"], plain.table.weight))
        self.assertFalse(torch.equal(ours["head.weight"], plain.head.weight))
        self.assertTrue(torch.equal(model.scale, plain.scale))

    def test_ignored_parameters_are_the_programs(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1), ignored=lambda p: p.name == "head.bias") as engine:
            stepped(engine, model)
            self.assertEqual(model.head.bias.grad.shape, (31,))


class LargestNorms(Case):
    """Of one rank: PyTorch renormalises on each rank what that looks up."""

    def lookups(self, kind: type[nn.Module]) -> nn.Module:
        torch.manual_seed(2)
        model = nn.Sequential(kind(31, 24, max_norm=0.7, norm_type=1.5), nn.Linear(24, 3))
        return model

    def test_of_embeddings_are_those_of_pytorch(self) -> None:
        for kind in (nn.Embedding, nn.EmbeddingBag):
            with self.subTest(kind.__name__):
                plain, model = self.lookups(kind), self.lookups(kind)
                theirs = torch.optim.SGD(plain.parameters(), 0.1)
                with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
                    for step in range(3):
                        tokens = tokens_of(step)  # the same on every rank
                        theirs.zero_grad()
                        plain(tokens).square().mean().backward()
                        theirs.step()
                        model(tokens).square().mean().backward()
                        engine.step()
                    ours = whole(model)
                self.expect_close(ours, plain.named_parameters())
                self.assertFalse(torch.allclose(ours["0.weight"], self.lookups(kind)[0].weight))


class Refused(Case):
    def expect_refused(self, model: nn.Module, why: str) -> None:
        with self.assertRaisesRegex(zero.ConfigError, why):
            zero.Engine(model, "zero3", zero.SGD(0.1))

    def test_modules_that_no_operator_of_ours_sees(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2))
        self.expect_refused(torch.jit.script(model), "TorchScript")
        self.expect_refused(nn.Sequential(torch.jit.script(nn.Linear(2, 2))), "'0' is one of TorchScript")
        self.expect_refused(torch.compile(model), "torch.compile")

    def test_parameters_without_memory_of_their_own(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.expect_refused(nn.Sequential(nn.LazyLinear(2)), "'0.weight' has no shape yet")
        sharded = nn.Sequential(nn.Linear(4, 4))
        fully_shard(sharded, mesh=init_device_mesh("cpu", (WORLD,)))
        self.expect_refused(sharded, "'0.weight' is a DTensor")
        with torch.device("meta"):
            self.expect_refused(nn.Linear(2, 2), "meta")

    def test_modules_that_pytorch_trains(self) -> None:
        self.expect_refused(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), "DistributedDataParallel")
        self.expect_refused(nn.Sequential(nn.DataParallel(nn.Linear(2, 2))), "'0' is trained by PyTorch's DataParallel")

    def test_modules_that_contain_themselves(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2))
        model.add_module("again", model)
        self.expect_refused(model, "'again' contains itself")

    def test_what_is_no_module(self) -> None:
        with self.assertRaisesRegex(zero.ConfigError, "not a dict"):
            zero.Engine({}, "zero3", zero.SGD(0.1))

    def test_every_fault_is_told_at_once(self) -> None:
        model = nn.Sequential(nn.LazyLinear(2), torch.jit.script(nn.Linear(2, 2)))
        self.expect_refused(model, "(?s)'0.weight'.*'1' is one of TorchScript")

    def test_optimizers_of_pytorch(self) -> None:
        model = made()
        with self.assertRaisesRegex(zero.ConfigError, "not torch.optim.AdamW"):
            zero.Engine(model, "zero3", torch.optim.AdamW(model.parameters()))

    def test_plans_and_settings_that_there_are_not(self) -> None:
        for make in (
            lambda: zero.Plan("zero4"),
            lambda: zero.Plan("zero3", precision="fp4"),
            lambda: zero.Plan("zero3", reduce_in="int3"),
            lambda: zero.Plan("zero3", gather_in="fp3"),
            lambda: zero.Plan("zero3", offload={"optimizer": "moon"}),
            lambda: zero.Plan("zero3", offload={"weights": "disk"}),
            lambda: zero.AdamW(moments="block4"),
            lambda: zero.Engine(made(), "zero3", zero.AdamW(-1.0)),
            lambda: zero.Engine(made(), "zero3", zero.AdamW(), outside="keep"),
        ):
            with self.assertRaises(zero.ConfigError):
                make()
        with self.assertRaises(TypeError):
            zero.Plan("zero3", precison="bf16")

    def test_a_model_that_another_engine_trains(self) -> None:
        model = made()
        with zero.Engine(model, "zero3", zero.SGD(0.1)) as engine:
            self.expect_refused(model, "already trained by an engine")
            loss_of(model, tokens_of(RANK)).backward()
            engine.step()
