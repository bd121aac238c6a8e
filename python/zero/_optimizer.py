"""The optimizer that an engine is to code that takes one of torch.optim."""

from __future__ import annotations

import weakref
import collections
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ._native import ConfigError, StateError

if TYPE_CHECKING:
    from ._engine import Engine

# What a group has in PyTorch; of an optimizer that has it not, the engine would not hear of it.
_FIXED = {
    "betas",
    "momentum",
    "dampening",
    "weight_decay",
    "nesterov",
    "eps",
    "amsgrad",
    "alpha",
    "centered",
    "lr_decay",
    "initial_accumulator_value",
}


class _NoState(dict):
    """That of an engine's optimizer: empty, and neither looked up in nor written."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StateError(
            "state of an engine's optimizer is the engine's, in slices over the ranks (engine.save(folder) has it; an "
            "engine whose load() takes weights_only=True begins anew)"
        )

    __missing__ = __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse


class EngineOptimizer(torch.optim.Optimizer):
    """An engine as a torch.optim.Optimizer.

    Parameters with the same hyper-parameters are a group, which has those of torch.optim's optimizer of the same name,
    else a learning rate alone. What the program, or a schedule of torch.optim.lr_scheduler, sets there is used from the
    next step on, the same on every rank. That step raises ConfigError for values that cannot be, and for those that
    other state belongs to: amsgrad, centered, an initial accumulator, a momentum that was 0 or is to be; and where
    groups or their parameters are others. Its hooks are called by engine.step(), too. Its state is the engine's: `state`
    is empty, and raises StateError where it is looked up in or written.
    """

    def __init__(self, engine: Engine, groups: Sequence[tuple[list[torch.Tensor], dict[str, Any]]]) -> None:
        self._engine = weakref.ref(engine)
        self._names = [sorted(values) for _, values in groups]
        self._parameters = [collections.Counter(map(id, params)) for params, _ in groups]
        self._sealed = False
        super().__init__([{"params": params, **values} for params, values in groups], groups[0][1])
        self._sealed = True

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        return _NoState()

    @state.setter
    def state(self, state: object) -> None:
        if self._sealed:
            _NoState()._refuse()

    def __getstate__(self) -> NoReturn:
        raise StateError("an engine's optimizer can be neither copied nor pickled (engine.save(folder))")

    def _trained(self) -> Engine:
        engine = self._engine()
        if engine is None:
            raise StateError("the engine of this optimizer has ended")
        return engine

    def _values(self) -> list[dict[str, Any]]:
        """Of each group, by the names that it was made with."""
        if [collections.Counter(map(id, group["params"])) for group in self.param_groups] != self._parameters:
            raise ConfigError(
                "groups of an engine's optimizer, or parameters of them, were added, removed or moved: it trains those "
                "that it was built with (freeze by requires_grad_(False), or build another engine)"
            )
        for group, names in zip(self.param_groups, self._names, strict=True):
            if group.get("maximize"):
                raise ConfigError("maximize is not of the engine's optimizer: it would not be heard (negate the loss)")
            if set_since := sorted((_FIXED & group.keys()).difference(names)):
                raise ConfigError(f"{set_since[0]} is not of the engine's optimizer: it would not be heard")
            if gone := sorted(set(names) - group.keys()):
                raise ConfigError(f"{gone[0]} was taken out of a group of the engine's optimizer (change its value)")
        return [
            {name: _number(group[name]) for name in names}
            for group, names in zip(self.param_groups, self._names, strict=True)
        ]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """engine.step(), behind the closure's loss and backward where there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._trained()._step(self)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of backwards since the latest step()."""
        self._trained().zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._sealed:
            raise StateError("an engine's parameters are chosen when it is built (build another)")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        raise StateError(
            "an engine's optimizer has no state of its own to save (engine.save(folder); a rate that was set is the "
            "program's: save scheduler.state_dict() as `user`, and set group['lr'] from it)"
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise StateError("an engine's optimizer has no state of its own to load (engine.load(folder))")


def _number(value: Any) -> Any:
    """A number, which may be a tensor, or a pair of them."""
    if isinstance(value, (tuple, list)):
        return tuple(_number(each) for each in value)
    return value if isinstance(value, bool) else float(value)
