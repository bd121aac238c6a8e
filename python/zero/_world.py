"""The ranks of a run, and what they do together beside an engine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

import torch
import torch.distributed as dist

from . import _native
from ._native import World

_world: World | None = None
_store: dist.Store | None = None  # in which the ranks of that world meet, where it is torch.distributed's


def _ranks_of_torch() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _store_of_torch() -> dist.TCPStore | None:
    """The store in which the ranks of torch.distributed met, where no launcher's agent has one for all."""
    if _ranks_of_torch() == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") in ("True", "true", "1"):
        return None
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, dist.TCPStore) else None


def _require_ranks_of_torch(joined: World, advice: str) -> World:
    theirs = _ranks_of_torch()
    if joined.size == 1 < theirs:
        raise _native.ConfigError(f"torch.distributed has {theirs} ranks here, zero.init() found one ({advice})")
    return joined


def init(
    *,
    timeout: float = 300.0,
    check: bool | None = None,
    transport: Literal["auto", "tcp", "gloo"] = "auto",
    ranks_per_host: int = 0,
    arena: bool = True,
    debug: bool = False,
) -> World:
    """Joins the ranks that a launcher (torchrun, Slurm, Open MPI, `zero launch`) started; without one, one rank.

    Where torch.distributed is initialised, the ranks are its, however they were started: torch.multiprocessing, too.

    timeout: seconds that an operation waits for its peers before it fails.
    check: compares what the ranks are about to do before each collective.
    transport: what memory of the CPU travels by; "auto" is shared memory inside a host and TCP between hosts; "tcp" and
        "gloo" are TCP, or Gloo, between all ranks.
    ranks_per_host: declares that so many consecutive ranks are a host of their own; 0: hosts are what they are.
    arena: lets CPU tensors of 128 KiB and more come from memory that is kept for the next of their size.
    debug: shows what PyTorch itself says when ranks do not meet.

    The variables ZERO_TIMEOUT, ZERO_CHECK, ZERO_TRANSPORT, ZERO_RANKS_PER_HOST, ZERO_ARENA and ZERO_DEBUG override
    them. Engines are of the world that was joined last; without a call, the first engine joins one. Collective.
    Raises ConfigError for variables that contradict each other, CommError when the ranks do not meet.
    """
    global _world, _store
    if not 0 < timeout < float("inf"):
        raise _native.ConfigError(f"`timeout` is {timeout} (a positive number of seconds)")
    store = _store_of_torch()
    joined = _native.join(
        timeout=timeout,
        check=check,
        transport=transport,
        ranks_per_host=ranks_per_host,
        arena=arena,
        debug=debug,
        meeting=(dist.get_rank(), dist.get_world_size(), store.host, store.port) if store is not None else None,
    )
    advice = "initialise it by env:// or tcp://, or set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE"
    _world, _store = _require_ranks_of_torch(joined, advice), store
    return _world


def world() -> World:
    """The world that was joined last; joins one where there is none yet, and is collective then."""
    if _world is None:
        return init()
    return _require_ranks_of_torch(_world, "call it behind init_process_group()")


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
