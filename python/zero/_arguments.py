"""What an engine is given, told of by its name where it is something else."""

from __future__ import annotations

import json
import math
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


def json_of(user: Any) -> str:
    """Strict JSON, which has no infinity, and no number that is none."""
    if user is None:
        return ""
    try:
        return json.dumps(user, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"`user` of save() is not what JSON can hold: {error} ({_misfit(user)})") from None


def _misfit(user: Any, path: str = "user") -> str:
    if isinstance(user, dict):
        parts = [_misfit(value, f"{path}[{key!r}]") for key, value in user.items()]
    elif isinstance(user, (list, tuple)):
        parts = [_misfit(value, f"{path}[{i}]") for i, value in enumerate(user)]
    elif isinstance(user, float) and not math.isfinite(user):
        return f"{path} is {user}: save it as text, or as None"
    else:
        fits = user is None or isinstance(user, (str, int, float))
        return "" if fits else f"{path} is of type {type(user).__name__}"
    return next((part for part in parts if part), "")
