"""What the tests of transformers' Trainer train. As a program: `trainers.py FOLDER`, by transformers' own, alone."""

from __future__ import annotations

import collections
import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(os.environ["ZERO_TEST_PACKAGES"])  # before torch, which asks for numpy

import torch
import transformers
from torch.utils.data import Dataset

SAMPLES, BATCH, WORDS, LENGTH = 20, 4, 61, 12

# What TrainingArguments may say, by a name: alone and on ranks the losses are the same.
CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sums": {"gradient_accumulation_steps": 3},  # 5 batches an epoch: the last step has 2
    "not clipped": {"max_grad_norm": 0.0, "weight_decay": 0.0},
    "linear": {"lr_scheduler_type": "linear", "warmup_steps": 0},
    "sgd": {"optim": "sgd", "learning_rate": 0.1},
    "means of ranks": {"average_tokens_across_devices": False, "gradient_accumulation_steps": 2},
}


class Recorded:
    """A Trainer that prints nothing, and its losses by step, which 4.57 rounds when it logs them."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.remove_callback(transformers.PrinterCallback)
        self.losses: dict[int, float] = collections.defaultdict(float)

    def training_step(self, *args: Any, **named: Any) -> torch.Tensor:
        loss = super().training_step(*args, **named)
        self.losses[self.state.global_step] += loss.item()
        return loss


class Alone(Recorded, transformers.Trainer):
    pass


class Samples(Dataset):
    """Tokens, of some of which there is no loss: of each sample of others."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(i))
        labels = ids.clone()
        labels[: i % 5] = -100
        return {"input_ids": ids, "labels": labels}


def made(seed: int = 11, **more: Any) -> transformers.LlamaForCausalLM:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=WORDS,
        max_position_embeddings=32,
        initializer_range=0.1,
        use_cache=False,  # as with checkpoints of activations: with a cache 4.57 takes other kernels
        **more,
    )
    return transformers.LlamaForCausalLM(config)


def arguments(folder: Path | str, ranks: int, **more: Any) -> transformers.TrainingArguments:
    usual = {
        "per_device_train_batch_size": BATCH // ranks,
        "per_device_eval_batch_size": BATCH // ranks,
        "num_train_epochs": 2,
        "learning_rate": 3e-3,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "eval_strategy": "epoch",
    }
    of_the_tests = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    return transformers.TrainingArguments(str(folder), **of_the_tests, **{**usual, **more})


def logged(trainer: transformers.Trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    told = {}
    for name, case in CASES.items():
        settings = arguments(folder / "alone", 1, **case)
        trainer = Alone(made(), settings, train_dataset=Samples(), eval_dataset=Samples())
        trainer.train()
        told[name] = {each: logged(trainer, each) for each in ("eval_loss", "learning_rate", "grad_norm")}
        told[name]["loss"] = list(trainer.losses.values())
    (folder / "alone.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
