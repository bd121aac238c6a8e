"""The engine."""

from __future__ import annotations

import atexit
import dataclasses
import os
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from . import _arguments, _backwards, _native, _user_values, _world
from ._native import CheckpointError, ConfigError, Plan, StateError, StepReport, World
from ._optimizer import EngineOptimizer

Optimizer = (
    _native.AdamW
    | _native.SGD
    | _native.Adagrad
    | _native.RMSprop
    | _native.Adam
    | _native.Lion
    | _native.Muon
    | _native.Adafactor
    | _native.Lamb
)

_OPTIMIZERS = typing.get_args(Optimizer)


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a checkpoint brought back."""

    folder: str
    step: int
    user: Any  # what save() was given, on rank 0; of a program in C++, its JSON as Python reads it
    tensors: dict[str, torch.Tensor]  # of all ranks, by name


def _restored(native: _native.Restored) -> Restored:
    user = _user_values.values_of(native.user_text, native.folder)
    return Restored(native.folder, native.step, user, native.tensors)


def find_checkpoint(path: str | os.PathLike[str]) -> Restored:
    """Of the checkpoint that `path` is, or of the newest that is whole of those in it.

    Raises CheckpointError where there is none.
    """
    return _restored(_native.find_checkpoint(os.fspath(path)))


class Engine:
    """Trains a torch.nn.Module under a plan of the ZeRO family.

    It takes the module's parameters over; rank 0's values win, its buffers' too. The module stays as it is: its own
    forward is called, loss.backward() is a micro-batch, and step() updates. Use it on the thread that built it.

    model: parameters that modules share are one. Children of Sequential, ModuleList and ModuleDict are what is gathered
        together, unless `units` says otherwise.
    plan: a Plan, or the name of a preset: "ddp", "zero1", "zero2", "zero3", "hybrid", "hybrid-zero2", "zeropp",
        "sdp4bit".
    optimizer: one of zero's, AdamW(3e-4) for example.
    world: from zero.init(); none: the one that was joined last.
    shard: ranks of a shard group, for the hybrid plans; 0: all.
    tensor_ranks: ranks of the tensor axis, which have the same micro-batches and a part each of what `tensor` names.
    tensor: how layers are cut over them, by names of modules or parameters below any beginning of a path:
        {"q_proj": "column", "c_attn": "column/3", "o_proj": "row"}, in three blocks where it is queries, keys and
        values in one; a model's `base_model_tp_plan`; or what zero.tensor_automatic() gives.
    tensor_grain: in how many tiles they are computed with; then the bits are those of any number of such ranks.
    sequence_parallel: norms, dropout and residuals between such layers are cut along the sequence.
    clip: largest global L2 norm of the gradient; larger ones are scaled down to it. 0: no clipping.
    seed: of random operators inside the model, by (seed, global micro-batch index).
    groups: ParamGroups, the first that takes a parameter wins.
    schedule: factor on the learning rate at a step, counted from 0.
    full_precision: whether a parameter is computed with in its own dtype whatever the plan's precision; zero.norms.
    loss_scale: none: dynamic where gradients are in fp16, else 1.
    units: a rule, zero.units_of_types(["LlamaDecoderLayer"]) for example, the same on every rank.
    ignored: parameters that the engine leaves to the program.
    group_norms: has reports tell of norms by group.
    float8: of plans with precision="fp8".
    outside: what becomes of gradients that another engine's backward brings: "drop" or "add".
    disk: where states on "disk" are (Plan's offload).

    Collective. Raises ConfigError, listing every fault, for what cannot work; the module is as it was then.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        plan: Plan | str = "zero3",
        optimizer: Optimizer | None = None,
        *,
        world: World | None = None,
        shard: int = 0,
        tensor_ranks: int = 1,
        tensor: Mapping[str, str] | None = None,
        tensor_grain: int = 1,
        sequence_parallel: bool = False,
        clip: float = 0.0,
        seed: int | None = None,
        groups: Sequence[_native.ParamGroup] = (),
        schedule: Callable[[int], float] | None = None,
        full_precision: Callable[[_native.ParameterInfo], bool] | None = None,
        loss_scale: _native.LossScale | None = None,
        units: Callable[[_native.ModuleInfo], bool] | None = None,
        ignored: Callable[[_native.ParameterInfo], bool] | None = None,
        group_norms: bool = False,
        float8: _native.Float8 | None = None,
        outside: Literal["drop", "add"] = "drop",
        disk: _native.Disk | None = None,
    ) -> None:
        self._native_engine: _native.Engine | None = None
        self._optimizer: EngineOptimizer | None = None
        if isinstance(optimizer, torch.optim.Optimizer):
            kind = type(optimizer).__name__
            raise ConfigError(f"an engine has optimizers of its own, not torch.optim.{kind} (take zero.AdamW(3e-4))")
        require = _arguments.require
        require("plan", plan, (Plan, str), 'a zero.Plan, or the name of a preset, "zero3"')
        require("optimizer", optimizer, (_OPTIMIZERS, type(None)), "zero.AdamW(3e-4), for example")
        require("world", world, (World, type(None)), "what zero.init() returned")
        require("shard", shard, int, "ranks of a shard group")
        require("tensor_ranks", tensor_ranks, int, "ranks of the tensor axis")
        require("tensor", tensor, (Mapping, type(None)), 'a dict, {"*.q_proj": "column"} for example')
        require("clip", clip, (int, float), "a number")
        require("seed", seed, (int, type(None)), "an integer that is not negative")
        if seed is not None and seed < 0:
            raise ConfigError(f"`seed` is {seed} (an integer that is not negative)")
        for group in groups:
            require("groups", group, _native.ParamGroup, "a list of zero.ParamGroup")
        _arguments.require_callable("schedule", schedule, "the factor on the learning rate at a step")
        _arguments.require_callable("full_precision", full_precision, "whether it takes a parameter, as zero.norms")
        _arguments.require_callable("units", units, 'whether a module is one, as zero.units_of_types(["Block"])')
        _arguments.require_callable("ignored", ignored, "whether it takes a parameter")
        options = _native.Options(
            clip=clip,
            seed=seed,
            groups=list(groups),
            schedule=_arguments.numbers_of(schedule),
            full_precision=full_precision,
            loss_scale=loss_scale,
            units=units,
            ignored=ignored,
            group_norms=group_norms,
            float8=float8 or _native.Float8(),
            outside=outside,
            disk=disk or _native.Disk([]),
            tensor=list((tensor or {}).items()),
            tensor_grain=tensor_grain,
            sequence_parallel=sequence_parallel,
        )
        _backwards.hear()
        self._native_engine = _native.Engine(
            model,
            world or _world.world(),
            shard,
            tensor_ranks,
            Plan(plan) if isinstance(plan, str) else plan,
            optimizer or _native.AdamW(),
            options,
        )
        _engines.add(self)

    @property
    def _native(self) -> _native.Engine:
        if self._native_engine is None:
            raise StateError("this engine has ended")
        return self._native_engine

    def backward(self, loss: torch.Tensor) -> None:
        """What loss.backward() does, times the loss scale. Errors come as zero's own classes."""
        self._native.backward(loss)
        if self._native_engine is None:  # which the call has kept until here
            raise StateError("the engine ended within its own backward, in a hook (end it when that has ended)")

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the loss scale: engine.scale(loss).backward() where that is not 1."""
        return self._native.scale(loss)

    def step(self) -> StepReport:
        """After as many backwards as the plan accumulates: clips, updates, and empties the gradients. Collective.

        Before, it does nothing and reports applied = False. Raises StateError, on every rank, when gradients overflow
        at the lowest loss scale, and where the model has other parameters than the engine trains.
        """
        if self._optimizer is None:
            return self._native.step()
        EngineOptimizer.step(self._optimizer)  # with the hooks that it has
        return self._native.last_step()

    def _step(self, optimizer: EngineOptimizer) -> None:
        self._native.set_groups(optimizer._values())
        optimizer._opt_called = True  # which schedules of PyTorch ask for
        self._native.step()

    def last_step(self) -> StepReport:
        """What the latest step() reported, whoever called it."""
        return self._native.last_step()

    def zero_grad(self) -> None:
        """Drops the gradients of backwards since the latest step(). Every rank must."""
        self._native.zero_grad()

    def discard(self) -> None:
        """Drops the whole step so far, and what a forward that raised left behind. Every rank must."""
        self._native.discard()

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """A copy of a parameter's mean gradient, whole, on every rank, before step(). Collective."""
        return self._native.gradient(parameter)

    def for_each_gradient_slice(self, use: Callable[[str, int, torch.Tensor, float], None]) -> None:
        """Calls use(name, begin, sum, scale) for what this rank updates, between backward and step().

        The mean gradient of the parameter's elements from `begin` on is sum * scale; what is written to `sum` is what
        the step takes. It ends with the call: kept, it raises, but not so an array that sum.numpy() gave.
        """
        self._native.for_each_gradient_slice(use)

    def main_parameter(self, parameter: torch.Tensor) -> torch.Tensor:
        """A copy of a parameter's main value in fp32 (fp64), whole, on every rank. Collective."""
        return self._native.main_parameter(parameter)

    @property
    def optimizer(self) -> EngineOptimizer:
        """The engine as a torch.optim.Optimizer, for code that takes one: schedules, training loops."""
        if self._optimizer is None:
            self._optimizer = EngineOptimizer(self, self._native.groups())
        return self._optimizer

    def set_lr(self, lr: float) -> None:
        """Learning rate of parameters in no group, from the next step on; those of groups change by the same factor."""
        optimizer = self.optimizer
        self._native.set_groups(optimizer._values())
        self._native.set_lr(lr)
        for group, (_, values) in zip(optimizer.param_groups, self._native.groups(), strict=True):
            group["lr"] = values["lr"]

    def request(self, bits: int) -> None:
        """Bits of the program's own, told to all ranks by the next step's report."""
        self._native.request(bits)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        user: Any = None,
        tensors: Mapping[str, torch.Tensor] | None = None,
        frozen: bool = True,
        keep_last: int = 0,
        keep_every: int = 0,
        replace: bool = False,
        background: bool = False,
        while_saving: Literal["wait", "refuse"] = "wait",
    ) -> str:
        """Writes everything that the engine needs to go on as `folder`/step-000123, which it returns. Collective.

        user: comes back as it is, on every rank; rank 0's counts. None, bool, int, float, str, bytes, and lists,
            tuples, sets, dicts, Counters and OrderedDicts of these; state_dict() of PyTorch's schedules, for example.
        tensors: of this rank, by names of their own. What cannot be saved of either, ConfigError names on the rank that
            has it, and nothing is saved. Buffers are those of the model as it is now; one that is not
            persistent is the program's, here as in PyTorch.
        frozen: whether parameters that are not trained are written too.
        keep_last, keep_every: so many of the newest stay, and those whose step is a multiple; 0: all, and none.
        background: returns when this rank's part is copied; how it ended is told by a later step's report.
        Raises CheckpointError, the same on every rank.
        """
        how = {
            "frozen": frozen,
            "keep_last": keep_last,
            "keep_every": keep_every,
            "replace": replace,
            "background": background,
            "while_saving": while_saving,
        }
        misfit: Exception | None = None
        try:
            options = _native.SaveOptions(
                user=_user_values.json_of(user), tensors=_arguments.tensors_of("tensors", tensors or {}), **how
            )
        except (RuntimeError, TypeError, ValueError) as error:
            misfit = error
            options = _native.SaveOptions(user=str(error), tensors={}, **how)  # no JSON, of which all ranks are told
        try:
            return self._native.save(os.fspath(folder), options)
        except CheckpointError:
            if misfit is None:
                raise
        raise misfit

    def finish_save(self) -> str:
        """Waits for a save in the background, and returns its checkpoint's folder; "" where none was. Collective."""
        return self._native.finish_save()

    def load(
        self,
        folder: str | os.PathLike[str],
        *,
        step: int | None = None,
        weights_only: bool = False,
        allow_new_optimizer: bool = False,
    ) -> Restored:
        """Goes on from the newest whole checkpoint in `folder`, or that of a step, under any plan and number of ranks.

        weights_only: parameters and buffers, nothing else. allow_new_optimizer: where the checkpoint has another
        optimizer's state, or not all that this one keeps, a parameter's begins. Collective. Raises CheckpointError
        where there is none that is whole, and ConfigError, naming all of it, for what is not of this engine.
        """
        return _restored(self._native.load(os.fspath(folder), step, weights_only, allow_new_optimizer))

    @property
    def activations(self) -> _native.ActivationReport:
        """What the plan's activation budget has done, of the last complete micro-batch."""
        return self._native.activations()

    def tensor_operators(self) -> dict[str, tuple[int, int]]:
        """How often operators ran on what is cut over the tensor axis: on parts, and whole, for want of a rule."""
        return self._native.tensor_operators()

    @property
    def micro_batch(self) -> int:
        """The global index of the next micro-batch. Choose the data by it: all plans and world sizes see the same."""
        return self._native.micro_batch()

    @property
    def plan(self) -> Plan:
        return self._native.plan()

    @property
    def steps(self) -> int:
        return self._native.steps()

    @property
    def skipped_steps(self) -> int:
        return self._native.skipped_steps()

    @property
    def loss_scale(self) -> float:
        """Of the next step."""
        return self._native.loss_scale()

    def release(self, *, computed: bool = False) -> None:
        """Gives the module its parameters back, whole; the engine ends. Collective.

        In the dtypes that they had, with their main values, from which another engine goes on. computed: as they are
        computed with, for half the memory in 16 bits; what main weights have beyond is lost.
        """
        self._native.release(computed)
        self.close()

    def close(self) -> None:
        """Ends the engine. Where the plan shards parameters their values are gone. Not collective.

        In a hook of its own backward it ends behind that, which raises StateError.
        """
        self._native_engine = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before PyTorch goes, which an engine's thread needs."""
    for engine in list(_engines):
        engine.close()
