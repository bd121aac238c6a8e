"""The ZeRO family for PyTorch: any torch.nn.Module, trained with its states sharded over the ranks.

    import zero

    engine = zero.Engine(model, plan="zero3", optimizer=zero.AdamW(3e-4))
    for x, y in data:
        loss = loss_of(model(x), y)
        loss.backward()
        engine.step()

Start it with torchrun. The library is that of C++, and so are the bits.
"""

from . import _built_with

_built_with.require_the_same()

from ._engine import Engine, Restored, find_checkpoint
from ._native import (
    SGD,
    ActivationReport,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    CheckpointError,
    CommError,
    ConfigError,
    Disk,
    Error,
    Float8,
    Lamb,
    Lion,
    LossScale,
    ModuleInfo,
    Muon,
    OutOfMemoryError,
    ParameterInfo,
    ParamGroup,
    Plan,
    RMSprop,
    StateError,
    StepReport,
    World,
    constant_schedule,
    cosine_schedule,
    cross_entropy,
    hidden_matrix,
    inverse_root_schedule,
    keep,
    linear_schedule,
    no_data,
    no_decay_on_norms_biases_embeddings,
    norms,
    stable_decay_schedule,
    tensor_automatic,
    units_by_size,
    units_in_containers,
    units_named,
    units_of_types,
    whole,
)
from ._optimizer import EngineOptimizer
from ._world import checkpoint_steps, gather, init, prepare_checkpoints, world

__all__ = [
    "ActivationReport",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "CheckpointError",
    "CommError",
    "ConfigError",
    "Disk",
    "Engine",
    "EngineOptimizer",
    "Error",
    "Float8",
    "Lamb",
    "Lion",
    "LossScale",
    "ModuleInfo",
    "Muon",
    "OutOfMemoryError",
    "ParamGroup",
    "ParameterInfo",
    "Plan",
    "RMSprop",
    "Restored",
    "SGD",
    "StateError",
    "StepReport",
    "World",
    "checkpoint_steps",
    "constant_schedule",
    "cosine_schedule",
    "cross_entropy",
    "find_checkpoint",
    "gather",
    "hidden_matrix",
    "init",
    "inverse_root_schedule",
    "keep",
    "linear_schedule",
    "no_data",
    "no_decay_on_norms_biases_embeddings",
    "norms",
    "prepare_checkpoints",
    "stable_decay_schedule",
    "tensor_automatic",
    "units_by_size",
    "units_in_containers",
    "units_named",
    "units_of_types",
    "whole",
    "world",
]
