"""Small MindSpore models whose recorded calls are checked one by one, and a recorder of one step of training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from msprobe.mindspore import PrecisionDebugger

_HIDDEN, _HEADS, _VOCABULARY, _LENGTH, _BATCH = 32, 4, 24, 12, 2


def _random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _weight(generator: np.random.Generator, *shape: int) -> Parameter:
    return Parameter(Tensor((generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)))


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply by a transposed weight; the CPU has no matrix product in bfloat16, so that is cast."""
    if x.dtype == ms.bfloat16:
        return mint.matmul(x.astype(ms.float32), weight.astype(ms.float32).T).astype(ms.bfloat16)
    return mint.matmul(x, weight.T)


def _fill(model: nn.Cell, seed: int) -> nn.Cell:
    """Set all parameters independently of MindSpore's own random numbers."""
    generator = _random(seed)
    for parameter in model.get_parameters():
        shape = parameter.shape
        scale = 1.0 / np.sqrt(max(1, int(np.prod(shape[1:])))) if len(shape) > 1 else 0.1
        is_norm = len(shape) == 1 and any(part in parameter.name for part in ("norm", "gamma", "variance"))
        values = generator.standard_normal(shape) * scale + (1.0 if is_norm else 0.0)
        values = np.abs(values) if "variance" in parameter.name else values
        parameter.set_data(Tensor(values.astype(np.float32), parameter.dtype))
    return model


class CellTransformer(nn.Cell):
    """Two layers of attention and a feed-forward net out of cells, with ``ops`` between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _HIDDEN)
        self.layers = nn.CellList([_CellLayer() for _ in range(2)])
        self.norm = nn.LayerNorm((_HIDDEN,))
        self.head = nn.Dense(_HIDDEN, _VOCABULARY, has_bias=False)

    def construct(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(tokens)
        mask = ops.triu(ops.ones((_LENGTH, _LENGTH), ms.int32), 1).astype(ms.bool_)
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.head(self.norm(x))
        return ops.cross_entropy(logits.reshape(-1, _VOCABULARY).astype(ms.float32), labels.reshape(-1))


class _CellLayer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((_HIDDEN,)), nn.LayerNorm((_HIDDEN,))
        self.qkv, self.out = nn.Dense(_HIDDEN, 3 * _HIDDEN), nn.Dense(_HIDDEN, _HIDDEN)
        self.up, self.down = nn.Dense(_HIDDEN, 2 * _HIDDEN), nn.Dense(2 * _HIDDEN, _HIDDEN)
        self.act = nn.GELU(approximate=False)

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = ops.split(self.qkv(self.norm1(x)), _HIDDEN, axis=-1)
        q, k, v = (h.reshape(batch, length, _HEADS, -1).transpose(0, 2, 1, 3) for h in heads)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / (_HIDDEN // _HEADS) ** 0.5
        weights = ops.softmax(ops.masked_fill(scores, mask, -10000.0).astype(ms.float32), axis=-1).astype(v.dtype)
        mixed = ops.bmm(weights.reshape(-1, length, length), v.reshape(batch * _HEADS, length, -1))
        mixed = mixed.reshape(batch, _HEADS, length, -1).transpose(0, 2, 1, 3).reshape(batch, length, -1)
        x = x + self.out(mixed)
        return x + self.down(self.act(self.up(self.norm2(x))))


class MintTransformer(nn.Cell):
    """A layer in the style of Llama out of functions of ``mint``: RMS norm, rotary embedding, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        generator = _random(5)
        self.embedding = _weight(generator, _VOCABULARY, _HIDDEN)
        self.norm1, self.norm2 = (Parameter(Tensor(np.ones(_HIDDEN), ms.float32)) for _ in range(2))
        self.q, self.k, self.v, self.o = (_weight(generator, _HIDDEN, _HIDDEN) for _ in range(4))
        self.gate, self.up = (_weight(generator, 2 * _HIDDEN, _HIDDEN) for _ in range(2))
        self.down = _weight(generator, _HIDDEN, 2 * _HIDDEN)
        self.head = _weight(generator, _VOCABULARY, _HIDDEN)

    def construct(self, tokens: Tensor, labels: Tensor) -> Tensor:
        functional = mint.nn.functional
        x = ops.gather(self.embedding.astype(ms.float32), tokens, 0).astype(self.q.dtype)
        x = x + self._attend(self._normed(x, self.norm1))
        h = self._normed(x, self.norm2)
        gated = mint.mul(
            functional.silu(_product(h, self.gate).astype(ms.float32)).astype(h.dtype), _product(h, self.up)
        )
        x = mint.add(x, _product(gated, self.down))
        logits = _product(x, self.head)
        flat = mint.reshape(logits, (-1, _VOCABULARY)).astype(ms.float32)
        chosen = mint.gather(ops.log_softmax(flat, -1), 1, mint.reshape(labels, (-1, 1)).astype(ms.int64))
        return mint.neg(mint.mean(chosen))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.astype(ms.float32)
        variance = mint.mean(mint.square(wide), dim=-1, keepdim=True)
        return mint.mul((wide * mint.rsqrt(variance + 1e-6)).astype(x.dtype), weight)

    def _attend(self, h: Tensor) -> Tensor:
        functional = mint.nn.functional
        batch, length, _ = h.shape

        def heads(weight: Tensor) -> Tensor:
            return mint.permute(mint.reshape(_product(h, weight), (batch, length, _HEADS, -1)), (0, 2, 1, 3))

        q, k, v = heads(self.q), heads(self.k), heads(self.v)
        angles = np.outer(np.arange(length), 10000.0 ** -(np.arange(0, 8, 2) / 8.0))
        angles = Tensor(np.concatenate((angles, angles), -1).astype(np.float32))
        cos, sin = mint.cos(angles).astype(h.dtype), mint.sin(angles).astype(h.dtype)

        def rotate(t: Tensor) -> Tensor:
            first, second = mint.chunk(t, 2, -1)
            return t * cos + mint.cat((-second, first), dim=-1) * sin

        q, k, v = (t.astype(ms.float32) for t in (rotate(q), rotate(k), v))
        scores = mint.matmul(q, mint.transpose(k, -1, -2)) * (8**-0.5)
        mask = ops.triu(ops.ones((length, length), ms.int32), 1) > 0
        weights = functional.softmax(mint.where(mask, ops.full_like(scores, -1e4), scores), dim=-1)
        mixed = mint.permute(mint.matmul(weights, v), (0, 2, 1, 3)).astype(h.dtype)
        mixed = mint.reshape(mixed, (batch, length, -1))
        return _product(mixed, self.o)


class Convolutions(nn.Cell):
    """Convolutions, batch and group norm, pools, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, pad_mode="same"), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, stride=2, pad_mode="pad", padding=1), nn.GroupNorm(2, 8)
        self.head = nn.Dense(8, 10)
        self.pool = nn.MaxPool2d(2, 2)

    def construct(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.pool(ops.relu(self.norm1(self.conv1(x))))
        x = ops.leaky_relu(self.norm2(self.conv2(x)), 0.1)
        x = ops.interpolate(x, scale_factor=2.0, mode="nearest", recompute_scale_factor=True)
        x = ops.adaptive_avg_pool2d(ops.pad(x, (1, 1, 1, 1)), 2)
        x = ops.flatten(ops.avg_pool2d(x, 2))
        log_p = ops.log_softmax(self.head(x).astype(ms.float32), -1)
        return -(log_p * ops.one_hot(labels, 10, Tensor(1.0), Tensor(0.0))).sum(-1).mean()


class Recurrent(nn.Cell):
    """A GRU and an LSTM one after the other, and a GRU cell written out."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRU(8, 12, batch_first=True), nn.LSTM(12, 12, batch_first=True)
        self.wi, self.wh = nn.Dense(12, 36), nn.Dense(12, 36)
        self.head = nn.Dense(12, 1)

    def construct(self, x: Tensor, labels: Tensor) -> Tensor:
        x, _ = self.gru(x)
        x, (h, _) = self.lstm(x)
        h = h[0]
        for t in range(3):
            ir, iz, inn = ops.chunk(self.wi(x[:, t]), 3, -1)
            hr, hz, hn = ops.chunk(self.wh(h), 3, -1)
            z = ops.sigmoid(iz + hz)
            h = (1 - z) * ops.tanh(inn + ops.sigmoid(ir + hr) * hn) + z * h
        return ops.mse_loss(self.head(h).squeeze(-1).astype(ms.float32), labels)


class Experts(nn.Cell):
    """Tokens are sent to their two best experts by indices, and added up again."""

    def __init__(self) -> None:
        super().__init__()
        generator = _random(9)
        self.router = _weight(generator, 4, _HIDDEN)
        self.experts = _weight(generator, 4, _HIDDEN, _HIDDEN)
        self.head = _weight(generator, 5, _HIDDEN)

    def construct(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = ops.softmax(_product(x, self.router).astype(ms.float32), -1)
        values, chosen = ops.topk(scores, 2)
        values = values / ops.sum(values, -1, keepdim=True)
        counts = ops.sum(ops.one_hot(chosen, 4), (0, 1))
        out = ops.zeros_like(x).astype(ms.float32)
        for expert in range(4):
            rows, places = ops.nonzero(chosen == expert).unbind(1)
            taken = ops.gather(x.astype(ms.float32), rows, 0).astype(x.dtype)
            done = ops.gelu(_product(taken, self.experts[expert]).astype(ms.float32))
            share = ops.gather_nd(values, ops.stack((rows, places), axis=-1))
            out = ops.index_add(out, rows.astype(ms.int32), done * share.expand_dims(-1), 0)
        _, order = ops.sort(chosen.reshape(-1).astype(ms.float32))
        regrouped = ops.cumsum(counts.astype(ms.float32), 0)
        balance = (scores.mean(0) * counts.astype(scores.dtype)).sum()
        spread = ops.tensor_scatter_add(out, (order[:3].reshape(-1, 1) // 2).astype(ms.int32), out[:3])
        logits = _product(spread.astype(x.dtype), self.head)
        loss = ops.cross_entropy(logits.astype(ms.float32), labels.astype(ms.int32))
        return loss + 0.01 * balance.astype(ms.float32) + 0 * regrouped.sum().astype(ms.float32)


def _tokens() -> tuple[Tensor, Tensor]:
    generator = _random(1)
    tokens = generator.integers(0, _VOCABULARY, (2, _BATCH, _LENGTH))
    return Tensor(tokens[0], ms.int32), Tensor(tokens[1], ms.int32)


def _numbers(*shape: int) -> Tensor:
    return Tensor(_random(2).standard_normal(shape).astype(np.float32))


MODELS: dict[str, tuple[Callable[[], nn.Cell], Callable[[], tuple[Tensor, Tensor]]]] = {
    "cells": (CellTransformer, _tokens),
    "mint": (MintTransformer, _tokens),
    "convolutions": (Convolutions, lambda: (_numbers(2, 3, 8, 8), Tensor([1, 7], ms.int32))),
    "recurrent": (Recurrent, lambda: (_numbers(2, 5, 8), _numbers(2))),
    "experts": (Experts, lambda: (_numbers(10, _HIDDEN), Tensor(np.arange(10) % 5, ms.int64))),
}
"""Models by name, each with its inputs and labels."""


def record(name: str, place: Path, dtype: Any = ms.float32, level: str = "mix") -> Path:
    """Train one step of a model in a dtype and record its tensors; return the directory of the one dump."""
    make, batch = MODELS[name]
    model = _fill(make(), 3)
    inputs, labels = batch()
    if dtype != ms.float32:
        if dtype == ms.float16:
            model.to_float(dtype)  # bfloat16 it would also give to the products, which the CPU does not have in it
        for parameter in model.get_parameters():
            parameter.set_dtype(dtype)
        inputs = inputs.astype(dtype) if inputs.dtype == ms.float32 else inputs
    if dtype == ms.bfloat16:  # the CPU lacks kernels of the backward
        return record_call(lambda: model(inputs, labels), place, model, level)
    train = ms.value_and_grad(
        lambda x: model(x, labels), 0 if inputs.dtype == dtype else None, model.trainable_params()
    )
    return record_call(lambda: train(inputs), place, model, level)


def record_call(function: Callable[[], Any], place: Path, model: nn.Cell | None = None, level: str = "mix") -> Path:
    """Record the tensors of what a function does; return the directory of the one dump."""
    config = place.with_suffix(".json")
    config.write_text(json.dumps({"task": "tensor", "level": level, "risk_level": "ALL", "dump_path": str(place)}))
    debugger = PrecisionDebugger(str(config))
    try:
        debugger.start(model)
        function()
        debugger.stop()
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    return unit
