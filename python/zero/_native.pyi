# The library's own classes; their defaults are those of include/zero.
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from torch import Tensor, nn

class Error(RuntimeError):
    """A failure of the library. Inside an operator of PyTorch it comes as a RuntimeError with the same text."""

class ConfigError(Error):
    """A plan, an option, a variable of the environment or an argument that cannot work."""

class StateError(Error):
    """A call out of order, or a parameter changed behind the engine's back."""

class CommError(Error):
    """A collective that failed: a rank died, a time limit passed, or the ranks called different operations."""

class OutOfMemoryError(Error):
    """A device that has no memory left."""

class CheckpointError(Error):
    """A checkpoint that cannot be written or read, or that is not what was written."""

class World:
    """The ranks of a run, as zero.init() joined them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...

def join(
    timeout: float,
    check: bool | None,
    transport: str,
    ranks_per_host: int,
    arena: bool,
    debug: bool,
    meeting: tuple[int, int, str, int] | None,
) -> World: ...

_Precision = Literal["fp32", "bf16", "fp16", "fp8", "bf16-pure", "bf16-sr", "bf16-kahan"]
_Tier = Literal["device", "host", "disk"]

class Plan:
    """Where each state of the training lives: a preset, and settings. docs/concepts.md has what they mean.

    precision: what is computed with. accumulate: micro-batches of a step. reproducible: sums along one tree.
    reduce_in: what gradients travel in: "fp32", "bf16", "fp16", or, between shard groups alone, "bf16-codes", "fp8",
        "int8", "int4", "int4-hadamard".
    error_feedback: what codes round off gradients is kept, and sent with the next ones.
    gather_in: what parameters travel in. keep_gathered: what stays of them until the update, so that one gather of a step
    crosses shard groups: each rank's slice in its group ("shard"), or all of it ("host").
    offload: the tier of a state, {"optimizer": "disk"}, or that and how much of it, {"optimizer": ("host", 0.8)}.
    delay_update: updates beside the next step's forward. resident_budget: bytes of parameters paged in; 0: two units, or
    three. overlap: units gathered ahead, and reduced, at once beside computing; 0: 2 over several hosts, else 1.
    activation_budget: of a micro-batch's activations, "2GiB" or "50%"; what is dropped is computed again, or comes from
    the tier of {"activation": "disk"}. activations_in: what products keep for backward within it, in 8 bits.
    Raises ConfigError for a name that there is not; what a plan cannot do on a world is told when an engine is built.
    """

    def __init__(
        self,
        preset: Literal["ddp", "zero1", "zero2", "zero3", "hybrid", "hybrid-zero2", "zeropp", "sdp4bit"] | str,
        *,
        precision: _Precision | str = "fp32",
        accumulate: int = 1,
        reproducible: bool = False,
        resident_budget: int = 0,
        overlap: int = 0,
        activation_budget: str | None = None,
        activations_in: Literal["native", "fp8", "int8"] | None = None,
        reduce_in: Literal["fp32", "bf16", "fp16", "bf16-codes", "fp8", "int8", "int4", "int4-hadamard"] | None = None,
        error_feedback: bool = False,
        gather_in: Literal["native", "bf16-codes", "fp8", "int8", "int4", "int4-hadamard", "int4-differences"]
        | None = None,
        keep_gathered: Literal["none", "shard", "host"] | None = None,
        offload: Mapping[Literal["parameter", "gradient", "optimizer", "activation"], _Tier | tuple[_Tier, float]] = ...,
        delay_update: bool = False,
    ) -> None: ...
    @staticmethod
    def presets() -> list[str]: ...
    @property
    def label(self) -> str: ...
    @property
    def preset(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def accumulate(self) -> int: ...

class ParameterInfo:
    """What parameters are chosen by."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def embedding(self) -> bool: ...
    @property
    def norm(self) -> bool: ...

class ModuleInfo:
    """What units are chosen by: a module that lies in none yet."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def numel(self) -> int: ...
    @property
    def in_container(self) -> bool: ...
    @property
    def container(self) -> bool: ...

_Moments = Literal["wide", "bf16", "block8"]

class _Optimizer:
    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...

class SGD(_Optimizer):
    """Stochastic gradient descent, as torch.optim.SGD."""

    def __init__(
        self,
        lr: float = ...,
        *,
        momentum: float = ...,
        dampening: float = ...,
        weight_decay: float = ...,
        nesterov: bool = ...,
    ) -> None: ...

class Adagrad(_Optimizer):
    """As torch.optim.Adagrad."""

    def __init__(
        self,
        lr: float = ...,
        *,
        lr_decay: float = ...,
        weight_decay: float = ...,
        initial_accumulator_value: float = ...,
        eps: float = ...,
    ) -> None: ...

class RMSprop(_Optimizer):
    """As torch.optim.RMSprop."""

    def __init__(
        self,
        lr: float = ...,
        *,
        alpha: float = ...,
        eps: float = ...,
        weight_decay: float = ...,
        momentum: float = ...,
        centered: bool = ...,
        eps_inside_root: bool = ...,
    ) -> None: ...

class Lion(_Optimizer):
    """The sign of an interpolated momentum (Chen et al., 2023)."""

    def __init__(self, lr: float = ..., *, betas: tuple[float, float] = ..., weight_decay: float = ...) -> None: ...

class Adam(_Optimizer):
    """As torch.optim.Adam; moments may be kept in bf16 or 8 bits."""

    def __init__(
        self,
        lr: float = ...,
        *,
        betas: tuple[float, float] = ...,
        eps: float = ...,
        weight_decay: float = ...,
        amsgrad: bool = ...,
        moments: _Moments = ...,
    ) -> None: ...

class AdamW(_Optimizer):
    """As torch.optim.AdamW; decay_by_lr=False: a step takes weight_decay of a weight away, whatever the rate."""

    def __init__(
        self,
        lr: float = ...,
        *,
        betas: tuple[float, float] = ...,
        eps: float = ...,
        weight_decay: float = ...,
        amsgrad: bool = ...,
        decay_by_lr: bool = ...,
        moments: _Moments = ...,
    ) -> None: ...

class Muon(_Optimizer):
    """Momentum of matrices made orthogonal (Jordan et al., 2024); `rest` updates what `takes` leaves."""

    def __init__(
        self,
        lr: float = ...,
        *,
        momentum: float = ...,
        weight_decay: float = ...,
        nesterov: bool = ...,
        iterations: int = ...,
        as_large_as_adamw: bool = ...,
        takes: Callable[[ParameterInfo], bool] | None = None,
        rest: AdamW = ...,
    ) -> None: ...

class Adafactor(_Optimizer):
    """As torch.optim.Adafactor."""

    def __init__(
        self,
        lr: float = ...,
        *,
        beta2_decay: float = ...,
        eps_square: float = ...,
        eps_step: float = ...,
        clip: float = ...,
        weight_decay: float = ...,
    ) -> None: ...

class Lamb(_Optimizer):
    """AdamW's step, as long as lr times the weights (You et al., 2020)."""

    def __init__(
        self, lr: float = ..., *, betas: tuple[float, float] = ..., eps: float = ..., weight_decay: float = ...
    ) -> None: ...

_AnyOptimizer = SGD | Adagrad | RMSprop | Lion | Adam | AdamW | Muon | Adafactor | Lamb

class ParamGroup:
    """Parameters with their own hyper-parameters; one belongs to the first group that takes it."""

    def __init__(
        self,
        takes: Callable[[ParameterInfo], bool],
        *,
        weight_decay: float | None = None,
        lr_scale: float = 1.0,
        optimizer: _AnyOptimizer | None = None,
    ) -> None: ...

def hidden_matrix(parameter: ParameterInfo) -> bool:
    """Matrices between the first and the last layer."""

def norms(parameter: ParameterInfo) -> bool:
    """Parameters of norms."""

def no_decay_on_norms_biases_embeddings() -> ParamGroup:
    """No weight decay on norms, biases (anything of one dimension or none) and embeddings."""

class LossScale:
    """How the loss is scaled where gradients are in fp16; dynamic=False keeps it at `initial`."""

    def __init__(
        self,
        initial: float = ...,
        *,
        dynamic: bool = ...,
        growth: float = ...,
        window: int = ...,
        backoff: float = ...,
        hysteresis: int = ...,
        floor: float = ...,
    ) -> None: ...

class Float8:
    """Which linear layers are computed in FP8, and by which scales."""

    def __init__(
        self,
        *,
        scaling: Literal["current", "delayed"] = "current",
        history: int = ...,
        takes: Callable[[ParameterInfo], bool] | None = None,
    ) -> None: ...

class Disk:
    """Directories for states on disk. block: bytes of an operation, depth: operations under way; 0: measured."""

    def __init__(
        self,
        directories: Sequence[str],
        *,
        checks: bool = ...,
        block: int = ...,
        depth: int = ...,
        direct: bool = ...,
        queue: Literal["auto", "io_uring", "threads"] = "auto",
    ) -> None: ...

_UnitRule = Callable[[ModuleInfo], bool]

def units_in_containers() -> _UnitRule:
    """Children of Sequential, ModuleList and ModuleDict that are none of these themselves: the default."""

def units_of_types(types: Sequence[str]) -> _UnitRule:
    """Modules of classes by name: ["LlamaDecoderLayer"]."""

def units_named(names: Sequence[str]) -> _UnitRule:
    """Modules by name; "*" stands for a part of a path: ["model.layers.*"]."""

def units_by_size(least: int, most: int) -> _UnitRule:
    """The largest modules of at most `most` elements, of those of at least `least`."""

_Schedule = Callable[[int], float]

def constant_schedule(warmup: int = 0) -> _Schedule: ...
def cosine_schedule(steps: int, *, warmup: int = 0, floor: float = 0.1) -> _Schedule: ...
def linear_schedule(steps: int, *, warmup: int = 0, floor: float = 0.0) -> _Schedule: ...
def inverse_root_schedule(warmup: int) -> _Schedule: ...
def stable_decay_schedule(steps: int, decay: int, *, warmup: int = 0, floor: float = 0.0) -> _Schedule: ...

class StepReport:
    """What one step did, the same on every rank, but for the seconds."""

    @property
    def applied(self) -> bool:
        """False between accumulation boundaries and for a skipped step."""
    @property
    def skipped(self) -> bool:
        """A gradient was infinite or not a number: nothing was updated, on any rank."""
    @property
    def loss(self) -> float:
        """The mean over the global batch."""
    @property
    def grad_norm(self) -> float:
        """Of the mean gradient, before clipping."""
    @property
    def group_norms(self) -> list[float]: ...
    @property
    def lr(self) -> float: ...
    @property
    def loss_scale(self) -> float: ...
    @property
    def step(self) -> int: ...
    @property
    def requests(self) -> int:
        """All bits that request() was given, on any rank, before this step's vote and since the one before."""
    @property
    def saved(self) -> str:
        """The folder of a save in the background that ended since the step before."""
    @property
    def save_fault(self) -> str: ...
    @property
    def update_seconds(self) -> float: ...
    @property
    def gather_seconds(self) -> float: ...
    @property
    def reduce_seconds(self) -> float: ...
    @property
    def vote_seconds(self) -> float: ...

class Options:
    def __init__(
        self,
        *,
        clip: float = ...,
        seed: int | None = ...,
        groups: Sequence[ParamGroup] = ...,
        schedule: _Schedule | None = ...,
        full_precision: Callable[[ParameterInfo], bool] | None = ...,
        loss_scale: LossScale | None = ...,
        units: _UnitRule | None = ...,
        ignored: Callable[[ParameterInfo], bool] | None = ...,
        group_norms: bool = ...,
        float8: Float8 = ...,
        outside: str = ...,
        disk: Disk = ...,
        tensor: Sequence[tuple[str, str]] = ...,
        tensor_grain: int = ...,
        sequence_parallel: bool = ...,
    ) -> None: ...

class SaveOptions:
    def __init__(
        self,
        *,
        user: str,
        tensors: Mapping[str, Tensor],
        frozen: bool,
        keep_last: int,
        keep_every: int,
        replace: bool,
        background: bool,
        while_saving: str,
    ) -> None: ...

class Restored:
    @property
    def folder(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def user_text(self) -> str: ...
    @property
    def tensors(self) -> dict[str, Tensor]: ...

def checkpoint_steps(folder: str) -> list[int]: ...
def find_checkpoint(path: str) -> Restored: ...
def prepare_checkpoints(world: World, folder: str) -> None: ...
def around_backward(
    roots: Sequence[object], gradients: Sequence[Tensor | None], backward: Callable[[], object], create_graph: bool
) -> None: ...

def no_data() -> Tensor:
    """A loss without a model: engine.backward(zero.no_data()) on a rank that has no data for a micro-batch.

    The rank takes part in all that the micro-batch needs, without computing. It counts in the mean over micro-batches.
    """

class ActivationReport:
    """What an activation budget has done, of an engine's last complete micro-batch."""

    @property
    def budget_bytes(self) -> int:
        """0: there is none, or it is a share and the first micro-batch is not over."""
    @property
    def unlimited_bytes(self) -> int:
        """The largest sum that would be alive at once without a budget."""
    @property
    def peak_bytes(self) -> int: ...
    @property
    def planned_bytes(self) -> int:
        """What the plan foretold of the peak; 0: the micro-batch went by none."""
    @property
    def operators(self) -> int: ...
    @property
    def recomputations(self) -> int:
        """Operators that ran again."""
    @property
    def moved_bytes(self) -> int:
        """To where they were stored, and back."""
    @property
    def recomputation_share(self) -> float:
        """Foretold: the time of what runs again, of that of all operators."""
    @property
    def planning_seconds(self) -> float:
        """Of the last plan."""

def keep(tensor: Tensor) -> Tensor:
    """Under an activation budget the tensor keeps its memory from here on, as long as it lives.

    For what is read past operators, by numpy(), data_ptr() or another library. Returns the tensor.
    """

def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
    pieces: int = 0,
    piece_bytes: int = ...,
) -> Tensor:
    """The cross entropy of linear(hidden, weight, bias), over pieces of the tokens, whose logits never exist at once.

    hidden [..., size], weight [classes, size], targets [...] of int64. Of each piece logits are computed again in
    backward. pieces: how many; 0: so many that one's logits take no more than piece_bytes, in fp32.
    """

class Gather:
    def __init__(self, parameters: Iterable[Tensor], from_rank: int | None = None) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...

def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that is cut over the ranks of a tensor axis, on each of them. Collective along the axis."""

def tensor_automatic(module: nn.Module, ranks: int, micro_batch: Callable[[], object]) -> dict[str, str]:
    """How the parameters of a module are cut over so many ranks of a tensor axis, for Engine's `tensor`: those, along
    those dimensions, for which a rank computes, moves and keeps least; the others are "whole". `micro_batch` runs
    once: a forward, with its backward if the module is to be trained; the module is left as it was, its buffers and
    gradients too. No collective.
    """

class Engine:
    def __init__(
        self,
        module: nn.Module,
        world: World,
        shard: int,
        tensor: int,
        plan: Plan,
        optimizer: _AnyOptimizer,
        options: Options,
    ) -> None: ...
    def activations(self) -> ActivationReport: ...
    def tensor_operators(self) -> dict[str, tuple[int, int]]: ...
    def backward(self, loss: Tensor) -> None: ...
    def scale(self, loss: Tensor) -> Tensor: ...
    def discard(self) -> None: ...
    def step(self) -> StepReport: ...
    def last_step(self) -> StepReport: ...
    def gradient(self, parameter: Tensor) -> Tensor: ...
    def main_parameter(self, parameter: Tensor) -> Tensor: ...
    def for_each_gradient_slice(self, use: Callable[[str, int, Tensor, float], None]) -> None: ...
    def groups(self) -> list[tuple[list[Tensor], dict[str, Any]]]: ...
    def set_groups(self, values: Sequence[dict[str, Any]]) -> None: ...
    def set_lr(self, lr: float) -> None: ...
    def zero_grad(self) -> None: ...
    def request(self, bits: int) -> None: ...
    def release(self, computed: bool) -> None: ...
    def micro_batch(self) -> int: ...
    def plan(self) -> Plan: ...
    def steps(self) -> int: ...
    def skipped_steps(self) -> int: ...
    def loss_scale(self) -> float: ...
    def save(self, folder: str, options: SaveOptions) -> str: ...
    def finish_save(self) -> str: ...
    def load(self, folder: str, step: int | None, weights_only: bool, allow_new_optimizer: bool) -> Restored: ...
