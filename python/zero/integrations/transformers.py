"""transformers' Trainer over an engine.

    from zero.integrations.transformers import Trainer

    trainer = Trainer(model, TrainingArguments(...), train_dataset=data, zero_plan="zero3")
    trainer.train()

Start it with torchrun. docs/python.md says what works and what is refused.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Mapping
from typing import Any

import accelerate
import torch
import transformers
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from .._engine import Engine, Optimizer
from .._native import ConfigError, ParamGroup, Plan, no_data
from .._world import gather
from . import _training_arguments

_VERSIONS = ("4.57", "5")
_FOLDER = "zero"  # of the engine's state, in a checkpoint of transformers'

if not any(f"{transformers.__version__}.".startswith(f"{version}.") for version in _VERSIONS):
    raise ImportError(
        f"zero.integrations.transformers is for transformers {' and '.join(_VERSIONS)}, here is "
        f"{transformers.__version__} (pip install 'transformers>=4.57,<6')"
    )


class _Accelerator(accelerate.Accelerator):
    """That of transformers, which here brings data and gathers metrics: model and optimizer stay as they are."""

    trainer: Trainer

    def prepare_model(self, model: Any, *_: Any, **__: Any) -> Any:
        return model

    def prepare_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> Any:
        return optimizer

    def backward(self, loss: torch.Tensor, **_: Any) -> None:
        """Of a loss that is a share of the step's. The engine takes the mean of as many as its plan accumulates."""
        engine = self.trainer._trained()
        micro_batches = engine.plan.accumulate
        engine.backward(loss * micro_batches)
        if self.sync_gradients:  # of the last step of an epoch, which may have fewer
            for _ in range(micro_batches - self.trainer.current_gradient_accumulation_steps):
                engine.backward(no_data())

    def clip_grad_norm_(self, *_: Any, **__: Any) -> None:
        """Is the engine's, which tells the norm when it has stepped."""

    @property
    def optimizer_step_was_skipped(self) -> bool:
        return self.trainer._trained().last_step().skipped


class Trainer(transformers.Trainer):
    """transformers' Trainer, whose model is trained by an engine.

    zero_plan: a preset's name, of which TrainingArguments say the precision (bf16, fp16) and the micro-batches of a
        step; or a zero.Plan, which agrees with them.
    zero_optimizer: one of zero's, zero.Muon(3e-4) for example; none: that of TrainingArguments.
    zero_options: what else zero.Engine takes, {"shard": 8} for example.

    The engine, `engine`, is built when training starts, and has the model from then on. trainer.evaluate(), predict(),
    save_model(), and model.save_pretrained(), which every rank calls, bring its parameters, and engine.release() gives
    them back. Raises ConfigError for arguments that it cannot keep.
    """

    engine: Engine | None = None

    def __init__(
        self,
        *args: Any,
        zero_plan: Plan | str = "zero3",
        zero_optimizer: Optimizer | None = None,
        zero_options: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        self._zero_plan = zero_plan
        self._zero_optimizer = zero_optimizer
        self._zero_options = dict(zero_options or {})
        self._to_save: dict[str, Any] | None = None
        _training_arguments.require_options(self._zero_options)
        super().__init__(*args, **named)
        if self.optimizer is not None or self.lr_scheduler is not None:
            raise ConfigError(
                "`optimizers` were given (the engine has its own: take `zero_optimizer`, and `lr_scheduler_type` of "
                "TrainingArguments or create_scheduler() of a class of yours)"
            )
        self._plan = _training_arguments.plan_of(zero_plan, self.args)

    def create_accelerator_and_postprocess(self) -> None:
        _training_arguments.refuse(self.args)
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = _Accelerator  # transformers names the class that it makes one of
        self.accelerator.trainer = self

    def create_optimizer(self, *_: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            if self.engine is not None:  # of the model that model_init has replaced
                self.engine.close()
            self.engine = self._engine_of(self.model)
            self.optimizer = self.engine.optimizer
        return self.optimizer

    def _engine_of(self, model: torch.nn.Module) -> Engine:
        self._dtypes = {id(parameter): parameter.dtype for parameter in model.parameters()}
        if isinstance(model, transformers.PreTrainedModel):
            self._dtype = model.dtype
            model.save_pretrained = self._save_pretrained
        decayed = set(self.get_decay_parameter_names(model))
        engine = Engine(
            model,
            self._plan,
            self._zero_optimizer or self._optimizer_of(model),
            clip=self.args.max_grad_norm or 0.0,
            seed=self.args.seed,
            groups=[ParamGroup(lambda parameter: parameter.name not in decayed, weight_decay=0.0)],
            **self._zero_options,
        )
        return engine

    def _optimizer_of(self, model: torch.nn.Module) -> Optimizer:
        given = getattr(self, "optimizer_cls_and_kwargs", None)
        kind, values = given or self.get_optimizer_cls_and_kwargs(self.args, model)
        return _training_arguments.optimizer_of(kind, values, self.args)

    def _trained(self) -> Engine:
        if self.engine is None:
            raise ConfigError("there is no engine before train() (call create_optimizer())")
        return self.engine

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, grad_norm: Any, *rest: Any, **named: Any) -> Any:
        return super()._maybe_log_save_evaluate(tr_loss, self._trained().last_step().grad_norm, *rest, **named)

    # What is saved has names and dtypes of the model as it came, and main values.

    def _whole(self) -> dict[str, Any] | None:
        """The model's state, on the rank that saves. None where the model has it. Collective."""
        if self.engine is None:
            return None
        state = self.model.state_dict(keep_vars=True)
        names: dict[int, list[str]] = collections.defaultdict(list)
        for name, value in state.items():
            if id(value) in self._dtypes:
                names[id(value)].append(name)
        for parameter, shared in names.items():
            whole = self.engine.main_parameter(state[shared[0]])
            if self.args.should_save:
                state.update(dict.fromkeys(shared, whole.to("cpu", self._dtypes[parameter])))
        return state

    def save_model(self, *args: Any, **named: Any) -> None:
        self._to_save = self._whole()  # by all ranks, of which one goes on to _save()
        try:
            super().save_model(*args, **named)
        finally:
            self._to_save = None

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict=self._to_save if state_dict is None else state_dict)

    def _save_pretrained(self, save_directory: Any, *args: Any, state_dict: Any = None, **named: Any) -> None:
        """In the place of the model's own. Without a state_dict it is collective."""
        state = self._whole() if state_dict is None else state_dict
        if self.args.should_save:
            type(self.model).save_pretrained(self.model, save_directory, *args, state_dict=state, **named)
            self.model.config.dtype = self._dtype  # not that which the model is computed in
            self.model.config.save_pretrained(save_directory)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        self._trained().save(os.path.join(output_dir, _FOLDER), replace=True)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = _engine_state(checkpoint)
        if folder is None:
            return
        self._trained().load(folder)
        state = torch.load(os.path.join(str(checkpoint), SCHEDULER_NAME), weights_only=True)
        self.lr_scheduler.load_state_dict(state)
        for group, lr in zip(self.optimizer.param_groups, self.lr_scheduler.get_last_lr(), strict=True):
            group["lr"] = lr

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **named: Any) -> None:
        if _engine_state(resume_from_checkpoint) is None:
            with self._written():
                super()._load_from_checkpoint(resume_from_checkpoint, *args, **named)

    def _load_best_model(self) -> None:
        folder = _engine_state(self.state.best_model_checkpoint)
        if folder is not None:
            self._trained().load(folder, weights_only=True)
            return
        with self._written():
            super()._load_best_model()

    def _written(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.engine is None else gather(self.model.parameters())


def _engine_state(checkpoint: str | None) -> str | None:
    """The engine's part of a checkpoint. None where it has weights alone: they are loaded, and training begins."""
    if checkpoint is None:
        return None
    folder = os.path.join(checkpoint, _FOLDER)
    if os.path.isdir(folder):
        return folder
    if os.path.exists(os.path.join(checkpoint, OPTIMIZER_NAME)):
        raise ConfigError(
            f"{checkpoint} has the state of an optimizer of torch.optim, which no engine goes on from (begin from its "
            "weights: from_pretrained() of that folder, and train() without resume_from_checkpoint)"
        )
    return None
