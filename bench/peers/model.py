"""The Llama-style language model that every peer trains; model.h is the same for ours.

Modules are made in the order of model.h, so that one seed gives both the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-5
THETA = 10000.0


@dataclass(frozen=True)
class Shape:
    layers: int
    dim: int
    heads: int
    ffn: int
    vocab: int
    seq: int


def projection(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def angles(shape: Shape) -> Tensor:
    """[seq, half a head]: by how much a pair of features turns at a position."""
    head = shape.dim // shape.heads
    frequencies = THETA ** (-torch.arange(0, head, 2).float() / head)
    return torch.outer(torch.arange(shape.seq).float(), frequencies)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.heads = shape.heads
        self.query = projection(shape.dim, shape.dim)
        self.key = projection(shape.dim, shape.dim)
        self.value = projection(shape.dim, shape.dim)
        self.output = projection(shape.dim, shape.dim)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key = (turn(self.split(p(x)), cos, sin) for p in (self.query, self.key))
        y = functional.scaled_dot_product_attention(query, key, self.split(self.value(x)), is_causal=True)
        return self.output(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = projection(shape.dim, shape.ffn)
        self.up = projection(shape.dim, shape.ffn)
        self.down = projection(shape.ffn, shape.dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, EPS)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.dim, EPS)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """From tokens and those that follow each, [batch, seq] of int64, to the mean cross entropy in fp32."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, EPS)
        self.head = projection(shape.dim, shape.vocab)
        self.angles = angles(shape)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.table(tokens)
        cos, sin = self.angles.cos().to(x.dtype), self.angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return functional.cross_entropy(logits.float(), targets.flatten())
