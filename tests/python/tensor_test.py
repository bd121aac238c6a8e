"""Models over a tensor axis, as they are: transformers' Llama, GPT-2 and Phi-3, and what is said of what ran whole."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
import zero
from torch import Tensor
from trained import WORLD, Case

SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=64,
    max_position_embeddings=32,
)
ADAMW = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
STEPS = 4
CUT = {
    "*.q_proj": "column",
    "*.k_proj": "column",
    "*.v_proj": "column",
    "*.o_proj": "row",
    "*.gate_proj": "column",
    "*.up_proj": "column",
    "*.down_proj": "row",
    "*.embed_tokens": "column",
    "lm_head": "column",
}


def llama() -> torch.nn.Module:
    torch.manual_seed(11)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, initializer_range=0.1))


def gpt2(attention: str) -> torch.nn.Module:
    """Queries, keys and values come of one product, whose weight is [inputs, outputs]."""
    torch.manual_seed(12)
    sizes = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=32)
    dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropout, attn_implementation=attention))


def phi3() -> torch.nn.Module:
    """They are taken apart by slices, and so are gates and what they gate."""
    torch.manual_seed(13)
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES, pad_token_id=0, initializer_range=0.1))


def loss_of(model: torch.nn.Module, micro_batch: int) -> Tensor:
    ids = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(micro_batch))
    return model(input_ids=ids, labels=ids).loss


class TensorAxis(Case):
    def plainly(self, make: Callable[[], torch.nn.Module] = llama) -> tuple[list[float], torch.nn.Module]:
        model, losses = make(), []
        optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, model

    def test_trains_a_llama_of_transformers(self) -> None:
        expected, plain = self.plainly()
        for plan in ("ddp", "zero3"):
            for sequence in (False, True):
                model = llama()
                with zero.Engine(
                    model,
                    plan=plan,
                    optimizer=zero.AdamW(**ADAMW),
                    tensor_ranks=WORLD,
                    tensor=CUT,
                    sequence_parallel=sequence,
                ) as engine:
                    losses = []
                    for _ in range(STEPS):
                        loss_of(model, engine.micro_batch).backward()
                        losses.append(engine.step().loss)
                    for ours, theirs in zip(losses, expected):
                        self.assertAlmostEqual(ours, theirs, delta=1e-5)
                    weight = model.model.layers[0].mlp.up_proj.weight
                    self.assertEqual(tuple(weight.shape), (48, 32))
                    self.assertEqual(tuple(zero.whole(weight).shape), (48, 32))
                    for name, (_, in_whole) in engine.tensor_operators().items():
                        if name in ("aten::mm", "aten::bmm", "aten::addmm", "aten::embedding"):
                            self.assertEqual(in_whole, 0, name)
                    engine.release()
                    ours = {name: value.detach() for name, value in model.named_parameters()}
                    self.expect_close(ours, plain.named_parameters(), within=1e-4)

    def test_plans_of_others_and_of_its_own(self) -> None:
        expected, _ = self.plainly()
        model = llama()
        own = zero.tensor_automatic(model, max(WORLD, 2), lambda: loss_of(model, 0).backward())
        self.assertEqual(own["model.layers.1.self_attn.q_proj.weight"], "column")
        self.assertEqual(own["model.layers.1.self_attn.o_proj.weight"], "row")
        self.assertEqual(own["model.layers.1.mlp.down_proj.weight"], "row")
        self.assertEqual(own["model.norm.weight"], "whole")
        self.assertTrue(all(parameter.grad is None for parameter in model.parameters()))
        for cuts in (own, model.config.base_model_tp_plan):
            model = llama()
            with zero.Engine(model, optimizer=zero.AdamW(**ADAMW), tensor_ranks=WORLD, tensor=cuts) as engine:
                for step in range(STEPS):
                    loss_of(model, engine.micro_batch).backward()
                    self.assertAlmostEqual(engine.step().loss, expected[step], delta=1e-5)

    def test_layers_that_are_several_in_one(self) -> None:
        fused = "transformer.h.1.attn.c_attn"
        layer = "model.layers.1"
        for make, of_block in (
            (lambda: gpt2("eager"), {fused + ".weight": "row/3", fused + ".bias": "column/3"}),
            (lambda: gpt2("sdpa"), {fused + ".weight": "row/3", "transformer.h.0.mlp.c_fc.weight": "row"}),
            (
                phi3,
                {layer + ".self_attn.qkv_proj.weight": "column/3", layer + ".mlp.gate_up_proj.weight": "column/2"},
            ),
        ):
            expected, plain = self.plainly(make)
            model = make()
            own = zero.tensor_automatic(model, max(WORLD, 2), lambda: loss_of(model, 0).backward())
            self.assertEqual({name: own[name] for name in of_block}, of_block)
            model = make()
            with zero.Engine(model, optimizer=zero.AdamW(**ADAMW), tensor_ranks=WORLD, tensor=own) as engine:
                for step in range(STEPS):
                    loss_of(model, engine.micro_batch).backward()
                    self.assertAlmostEqual(engine.step().loss, expected[step], delta=1e-5)
                in_whole = {name for name, (_, whole) in engine.tensor_operators().items() if whole > 0}
                self.assertEqual(in_whole, set())
                engine.release()
                ours = {name: value.detach() for name, value in model.named_parameters()}
                self.expect_close(ours, plain.named_parameters(), within=1e-4)

    def test_other_cuts_are_refused(self) -> None:
        with self.assertRaisesRegex(zero.ConfigError, "the style 'diagonal'"):
            zero.Engine(llama(), tensor_ranks=WORLD, tensor={"*.up_proj": "diagonal"})
        with self.assertRaisesRegex(zero.ConfigError, "`tensor` is 2"):
            zero.Engine(llama(), tensor=2)
