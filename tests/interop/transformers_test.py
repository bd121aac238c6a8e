#!/usr/bin/env python3
"""Models go to Hugging Face's transformers and come from it, and compute the same there.
transformers_test.py LLAMA_INTEROP ZERO VENV LIBTORCH [unittest's arguments]"""

from __future__ import annotations

import array
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOLERANCE = 1e-5
SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 257,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "grouped": {"num_key_value_heads": 2, "head_dim": 16, "rope_theta": 5e5},
    "grouped and tied": {"num_key_value_heads": 3, "tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "llama3": {"rope_scaling": LLAMA3, "rope_theta": 5e5},
}
SHARDED = "20KB"


class Transformers(unittest.TestCase):
    interop: str
    zero: str

    def setUp(self) -> None:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(1)
        torch.manual_seed(3)
        folder = tempfile.TemporaryDirectory(prefix="zero.transformers.")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_program(self, *words: object) -> str:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def made(self, changes: dict):
        """A random model with weights that matter, norms too."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**(SIZES | {"initializer_range": 0.15} | changes))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        return model

    def opened(self, folder: Path):
        from transformers import AutoModelForCausalLM

        model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto")
        self.assertFalse(any(told.values()), told)
        return model.eval()

    def expect_same_logits(self, model, config: Path, weights: Path) -> None:
        import torch

        ids = torch.randint(SIZES["vocab_size"], (1, 50))
        (self.folder / "ids").write_bytes(ids.numpy().tobytes())
        self.run_program(self.interop, "logits", config, weights, self.folder / "ids", self.folder / "logits")
        ours = torch.frombuffer(bytearray((self.folder / "logits").read_bytes()), dtype=torch.float32)
        with torch.no_grad():
            theirs = model(ids).logits.flatten()
        self.assertGreater(theirs.std().item(), 0.1)
        self.assertLess((ours - theirs).abs().max().item(), TOLERANCE)

    def expect_same_loss(self, model, weights: Path) -> None:
        """Over windows of 24 tokens, the last one of them shorter."""
        import torch

        tokens = torch.randint(SIZES["vocab_size"], (24 * 7 + 10,))
        data = self.folder / "tokens.bin"
        data.write_bytes(array.array("H", tokens.tolist()).tobytes())
        words = ["--data", data, "--seq", 24, "--batch", 3, "--json", "-"]
        result = json.loads(self.run_program(self.zero, "eval", "--model", weights, *words))
        total = 0.0
        for begin in range(0, len(tokens) - 1, 24):
            window = tokens[begin : begin + 25]
            with torch.no_grad():
                logits = model(window[None, :-1]).logits[0]
            total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
        self.assertEqual(result["tokens"], len(tokens) - 1)
        self.assertAlmostEqual(result["loss"], total / (len(tokens) - 1), delta=TOLERANCE)

    def test_their_models_compute_the_same_here(self) -> None:
        for name, changes in MODELS.items():
            for size in ("5GB", SHARDED):
                with self.subTest(name, size=size):
                    model = self.made(changes)
                    folder = self.folder / f"{name} {size}"
                    model.save_pretrained(folder, max_shard_size=size)
                    self.assertEqual((folder / "model.safetensors.index.json").exists(), size == SHARDED)
                    self.expect_same_logits(model, folder / "config.json", folder)
                    self.expect_same_loss(model, folder)

    def test_our_models_compute_the_same_there(self) -> None:
        for number, (name, changes) in enumerate(MODELS.items()):
            for size, precision in (("5GB", "fp32"), (SHARDED, "bf16")):
                with self.subTest(name, size=size, precision=precision):
                    run, out = self.folder / f"run {number} {precision}", self.folder / f"out_{number}_{precision}"
                    config = self.folder / "config.json"
                    config.write_text(json.dumps(SIZES | {"initializer_range": 0.15} | changes))
                    self.run_program(self.interop, "train", config, run, precision)
                    self.run_program(self.zero, "checkpoint", "export", run, "--to", out, "--max-shard-size", size)
                    model = self.opened(out)
                    self.assertEqual(model.dtype.__str__(), "torch.float32")
                    self.assertEqual((out / "model.safetensors.index.json").exists(), size == SHARDED)
                    self.expect_same_logits(model, out / "config.json", run / "step-000003")
                    self.expect_same_loss(model, run)
                    self.expect_same_loss(model, out)

    def test_an_export_in_bf16_is_the_rounded_one(self) -> None:
        import torch

        for number, name in enumerate(("plain", "grouped and tied")):
            with self.subTest(name):
                config, run = self.folder / "config.json", self.folder / f"run {number}"
                config.write_text(json.dumps(SIZES | MODELS[name]))
                self.run_program(self.interop, "train", config, run, "fp32")
                states = {}
                for dtype in ("fp32", "bf16"):
                    out = self.folder / f"{number}_{dtype}"
                    self.run_program(self.zero, "checkpoint", "export", run, "--to", out, "--dtype", dtype)
                    states[dtype] = self.opened(out).state_dict()
                self.assertEqual(states["fp32"].keys(), states["bf16"].keys())
                for key, value in states["bf16"].items():
                    self.assertEqual(value.dtype, torch.bfloat16)
                    self.assertTrue(torch.equal(value, states["fp32"][key].to(torch.bfloat16)), key)

    def test_training_starts_from_their_weights(self) -> None:
        """The first loss is that of the model as it came."""
        model = self.made(MODELS["grouped and tied"])
        model.save_pretrained(self.folder / "model", max_shard_size=SHARDED)
        text = self.folder / "text"
        text.write_bytes(bytes(range(256)) * 8)
        out = self.run_program(
            *(self.zero, "train", "--model", self.folder / "model", "--data", text, "--seq", 32, "--batch", 2),
            *("--steps", 1, "--lr", 0, "--profile", "none", "--json", self.folder / "trained.json"),
        )
        self.assertIn("starts from the weights in", out)
        evaluated = self.run_program(self.zero, "eval", "--model", self.folder / "model", "--data", text, "--seq", 32)
        self.assertIn("tokens, perplexity", evaluated)
        random = self.run_program(
            *(self.zero, "train", "--model", self.folder / "model" / "config.json", "--data", text, "--seq", 32),
            *("--batch", 2, "--steps", 1, "--lr", 0, "--profile", "none", "--json", self.folder / "random.json"),
        )
        self.assertIn("starts from random weights", random)
        losses = [json.loads((self.folder / f"{name}.json").read_text())["runs"][0]["losses"][0]
                  for name in ("trained", "random")]
        self.assertNotAlmostEqual(*losses, delta=1e-3)


def main() -> None:
    Transformers.interop, Transformers.zero, venv, libtorch = *sys.argv[1:3], Path(sys.argv[3]), sys.argv[4]
    python = venv / "bin" / "python"
    if not importlib.util.find_spec("transformers"):
        if not python.exists() or venv.samefile(sys.prefix):
            sys.exit(f"no transformers in {venv} to read models with: scripts/setup.sh --tests")
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        os.execv(python, [python, *sys.argv])
    sys.path.append(str(Path(libtorch).parent))  # the torch that ours is built with
    if not importlib.util.find_spec("torch"):
        sys.exit(f"no torch for Python beside LibTorch, in {libtorch}: transformers needs it")
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])


if __name__ == "__main__":
    main()
