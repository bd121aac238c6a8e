"""What an engine is given, told of by its name where it is something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ._native import ConfigError


def require(name: str, value: object, kinds: type | tuple[type, ...], hint: str) -> None:
    if not isinstance(value, kinds):
        shown = f"the class {value.__module__}.{value.__qualname__}" if isinstance(value, type) else repr(value)
        raise ConfigError(f"`{name}` is {shown} ({hint})")


def require_callable(name: str, value: object, hint: str) -> None:
    if value is not None and not callable(value):
        raise ConfigError(f"`{name}` is {value!r} (a function: {hint})")


def tensors_of(name: str, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Those given, which have to have values of their own, one for each element."""
    for key, value in given.items():
        place = f"{name}[{key!r}]"
        if not isinstance(key, str) or any("\ud800" <= character <= "\udfff" for character in key):
            raise ConfigError(f"`{place}` has no name that can be saved (text that UTF-8 has)")
        require(place, value, torch.Tensor, "a tensor: torch.as_tensor() makes one")
        if value.is_meta or value.layout != torch.strided:
            raise ConfigError(f"`{place}` is {'meta' if value.is_meta else value.layout} (a dense tensor with values)")
    return dict(given)


def numbers_of(schedule: Callable[[int], float] | None) -> Callable[[int], float] | None:
    """The schedule, which has to return a number."""
    if schedule is None:
        return None

    def factor(step: int) -> float:
        value = schedule(step)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"`schedule` gives {value!r} for step {step} (it is a finite number)") from None

    return factor
