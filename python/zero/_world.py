"""The ranks of a run, and what they do together beside an engine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

import torch

from . import _native
from ._native import World

_world: World | None = None


def init(
    *,
    timeout: float = 300.0,
    check: bool | None = None,
    transport: Literal["auto", "gloo"] = "auto",
    ranks_per_host: int = 0,
    arena: bool = True,
    debug: bool = False,
) -> World:
    """Joins the ranks that a launcher (torchrun, Slurm, Open MPI, `zero launch`) started; without one, one rank.

    timeout: seconds that an operation waits for its peers before it fails.
    check: compares what the ranks are about to do before each collective.
    transport: what memory of the CPU travels by; "auto" is shared memory inside a host, Gloo between hosts.
    ranks_per_host: declares that so many consecutive ranks are a host of their own; 0: hosts are what they are.
    arena: lets CPU tensors of 128 KiB and more come from memory that is kept for the next of their size.
    debug: shows what PyTorch itself says when ranks do not meet.

    The variables ZERO_TIMEOUT, ZERO_CHECK, ZERO_TRANSPORT, ZERO_RANKS_PER_HOST, ZERO_ARENA and ZERO_DEBUG override
    them. Engines are of the world that was joined last; without a call, the first engine joins one. Collective.
    Raises ConfigError for variables that contradict each other, CommError when the ranks do not meet.
    """
    global _world
    _world = _native.join(
        timeout=timeout, check=check, transport=transport, ranks_per_host=ranks_per_host, arena=arena, debug=debug
    )
    return _world


def world() -> World:
    """The world that was joined last; joins one where there is none yet, and is collective then."""
    return _world if _world is not None else init()


def gather(parameters: torch.Tensor | Iterable[torch.Tensor], from_rank: int | None = None) -> _native.Gather:
    """`with zero.gather(model.parameters()):` the parameters are whole inside, on every rank.

    They may be read by any code, and written under torch.no_grad(); what was written is kept at the end. All ranks must
    write the same, or `from_rank` is given and that rank's values win. Left by an exception it drops what was written.
    Parameters that no engine has are left alone. Collective at both ends.
    """
    return _native.Gather([parameters] if isinstance(parameters, torch.Tensor) else list(parameters), from_rank)


def checkpoint_steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps of the checkpoints in a folder, ascending, whole or damaged since; none where there is no folder."""
    return _native.checkpoint_steps(os.fspath(folder))


def prepare_checkpoints(folder: str | os.PathLike[str]) -> None:
    """Makes the folder, and removes what saves that were cut off left in it.

    Raises CheckpointError, the same on every rank, where ranks do not share the folder. Collective.
    """
    _native.prepare_checkpoints(world(), os.fspath(folder))
