"""What an engine is given, told of by its name where it is something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._native import ConfigError


def require(name: str, value: object, kinds: type | tuple[type, ...], hint: str) -> None:
    if not isinstance(value, kinds):
        shown = f"the class {value.__module__}.{value.__qualname__}" if isinstance(value, type) else repr(value)
        raise ConfigError(f"`{name}` is {shown} ({hint})")


def require_callable(name: str, value: object, hint: str) -> None:
    if value is not None and not callable(value):
        raise ConfigError(f"`{name}` is {value!r} (a function: {hint})")


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
