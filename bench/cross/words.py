"""A common vocabulary of the two frameworks: a model is written once, and built from either framework's own layers.

Nothing is computed here: each word is the framework's own layer, function or operator, called as users call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

FRAMEWORKS = ("pytorch", "mindspore")


class TorchWords:
    """PyTorch's."""

    name = "pytorch"

    def __init__(self) -> None:
        import torch
        from torch import nn
        from torch.nn import functional

        self._torch, self._f, self.nn = torch, functional, nn
        self._dtype = torch.float32

        class Block(nn.Module):
            def forward(self, *arguments: Any, **named: Any) -> Any:
                return self.run(*arguments, **named)

        self.Block = Block

    # --- layers ---

    def sequential(self, *blocks: Any) -> Any:
        return self.nn.Sequential(*blocks)

    def blocks(self, blocks: Sequence[Any]) -> Any:
        return self.nn.ModuleList(blocks)

    def linear(self, before: int, after: int, *, bias: bool = True) -> Any:
        return self.nn.Linear(before, after, bias=bias)

    def conv2d(self, before: int, after: int, kernel: int, **options: Any) -> Any:
        return self.nn.Conv2d(before, after, kernel, **options)

    def conv1d(self, before: int, after: int, kernel: int, **options: Any) -> Any:
        return self.nn.Conv1d(before, after, kernel, **options)

    def conv2d_transpose(self, before: int, after: int, kernel: int, stride: int, padding: int) -> Any:
        return self.nn.ConvTranspose2d(before, after, kernel, stride=stride, padding=padding)

    def batch_norm2d(self, channels: int, *, eps: float = 1e-5, momentum: float = 0.1) -> Any:
        return self.nn.BatchNorm2d(channels, eps=eps, momentum=momentum)

    def layer_norm(self, size: int, *, eps: float = 1e-5) -> Any:
        return self.nn.LayerNorm(size, eps=eps)

    def group_norm(self, groups: int, channels: int, *, eps: float = 1e-5) -> Any:
        return self.nn.GroupNorm(groups, channels, eps=eps)

    def embedding(self, number: int, size: int) -> Any:
        return self.nn.Embedding(number, size)

    def max_pool2d(self, kernel: int, stride: int) -> Any:
        return self.nn.MaxPool2d(kernel, stride)

    def avg_pool2d(self, kernel: int, stride: int) -> Any:
        return self.nn.AvgPool2d(kernel, stride)

    def dropout(self, probability: float) -> Any:
        return self.nn.Dropout(probability)

    def activation(self, name: str) -> Any:
        made = {
            "relu": self.nn.ReLU, "silu": self.nn.SiLU, "gelu": self.nn.GELU, "tanh": self.nn.Tanh,
            "gelu_tanh": lambda: self.nn.GELU(approximate="tanh"), "leaky_relu": lambda: self.nn.LeakyReLU(0.2),
            "hardswish": self.nn.Hardswish, "relu6": self.nn.ReLU6, "sigmoid": self.nn.Sigmoid, "elu": self.nn.ELU,
        }  # fmt: skip
        return made[name]()

    def recurrent(self, kind: str, before: int, after: int, *, layers: int = 1, both: bool = False) -> Any:
        return getattr(self.nn, kind)(before, after, num_layers=layers, bidirectional=both, batch_first=True)

    def parameter(self, array: np.ndarray, name: str) -> Any:
        del name
        return self.nn.Parameter(self._torch.from_numpy(array.astype(np.float32)))

    # --- functions ---

    def tensor(self, array: np.ndarray) -> Any:
        tensor = self._torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self._dtype) if array.dtype == np.float32 else tensor

    def cast(self, model: Any, dtype: str) -> None:
        """Switch the computation to another floating-point format."""
        self._dtype = getattr(self._torch, dtype)
        model.to(self._dtype)

    def matmul(self, a: Any, b: Any) -> Any:
        return self._torch.matmul(a, b)

    def transpose(self, x: Any, *order: int) -> Any:
        return x.permute(*order)

    def softmax(self, x: Any, axis: int = -1) -> Any:
        return self._f.softmax(x, dim=axis)

    def log_softmax(self, x: Any, axis: int = -1) -> Any:
        return self._f.log_softmax(x, dim=axis)

    def cat(self, parts: Sequence[Any], axis: int) -> Any:
        return self._torch.cat(parts, dim=axis)

    def stack(self, parts: Sequence[Any], axis: int) -> Any:
        return self._torch.stack(parts, dim=axis)

    def split(self, x: Any, size: int, axis: int) -> Any:
        return self._torch.split(x, size, dim=axis)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self._torch.where(condition, a, b)

    def masked_fill(self, x: Any, mask: Any, value: float) -> Any:
        return x.masked_fill(mask, value)

    def gather(self, x: Any, index: Any, axis: int) -> Any:
        return self._torch.gather(x, axis, index)

    def take(self, x: Any, index: Any, axis: int) -> Any:
        return self._torch.index_select(x, axis, index)

    def index_add(self, size: int, index: Any, x: Any) -> Any:
        return self._torch.zeros(size, x.shape[-1], dtype=x.dtype).index_add(0, index, x)

    def topk(self, x: Any, k: int, *, largest: bool = True) -> Any:
        return self._torch.topk(x, k, dim=-1, largest=largest)

    def sort(self, x: Any) -> Any:
        return self._torch.sort(x, dim=-1)

    def max(self, x: Any, axis: int) -> Any:
        return self._torch.max(x, dim=axis)

    def cumsum(self, x: Any, axis: int) -> Any:
        return self._torch.cumsum(x, dim=axis)

    def one_hot(self, x: Any, size: int) -> Any:
        return self._f.one_hot(x.long(), size).to(self._dtype)

    def mean(self, x: Any, axis: Any, *, keep: bool = False) -> Any:
        return x.mean(axis, keepdim=keep)

    def sum(self, x: Any, axis: Any, *, keep: bool = False) -> Any:
        return x.sum(axis, keepdim=keep)

    def var(self, x: Any, axis: int) -> Any:
        return x.var(axis, unbiased=False, keepdim=True)

    def unary(self, name: str, x: Any) -> Any:
        return getattr(self._f if name in {"gelu", "silu", "softplus", "relu"} else self._torch, name)(x)

    def l2_normalize(self, x: Any) -> Any:
        return self._f.normalize(x, dim=-1)

    def upsample(self, x: Any, size: tuple[int, int]) -> Any:
        return self._f.interpolate(x, size=size, mode="nearest")

    def pad_left(self, x: Any, number: int) -> Any:
        return self._f.pad(x, (number, 0))

    def half_and_back(self, x: Any, kind: str) -> Any:
        return x.to(getattr(self._torch, kind)).to(self._torch.float32)

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        return self._f.cross_entropy(logits, labels.long())

    def binary_cross_entropy(self, logits: Any, labels: Any) -> Any:
        return (self._f.softplus(logits) - logits * labels).mean()

    def mse(self, x: Any, y: Any) -> Any:
        return self._f.mse_loss(x, y)


class MindSporeWords:
    """MindSpore's."""

    name = "mindspore"

    def __init__(self) -> None:
        import mindspore
        from mindspore import nn, ops

        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        mindspore.runtime.launch_blocking()
        self._ms, self._ops, self.nn = mindspore, ops, nn
        self._dtype = mindspore.float32

        class Block(nn.Cell):
            def construct(self, *arguments: Any, **named: Any) -> Any:
                return self.run(*arguments, **named)

        self.Block = Block

    # --- layers ---

    def sequential(self, *blocks: Any) -> Any:
        return self.nn.SequentialCell(*blocks)

    def blocks(self, blocks: Sequence[Any]) -> Any:
        return self.nn.CellList(blocks)

    def linear(self, before: int, after: int, *, bias: bool = True) -> Any:
        return self.nn.Dense(before, after, has_bias=bias)

    def conv2d(self, before: int, after: int, kernel: int, **options: Any) -> Any:
        return self.nn.Conv2d(before, after, kernel, **_of_conv(options))

    def conv1d(self, before: int, after: int, kernel: int, **options: Any) -> Any:
        return self.nn.Conv1d(before, after, kernel, **_of_conv(options))

    def conv2d_transpose(self, before: int, after: int, kernel: int, stride: int, padding: int) -> Any:
        return self.nn.Conv2dTranspose(
            before, after, kernel, stride=stride, padding=padding, pad_mode="pad", has_bias=True
        )

    def batch_norm2d(self, channels: int, *, eps: float = 1e-5, momentum: float = 0.1) -> Any:
        return self.nn.BatchNorm2d(channels, eps=eps, momentum=1 - momentum)

    def layer_norm(self, size: int, *, eps: float = 1e-5) -> Any:
        return self.nn.LayerNorm((size,), epsilon=eps)

    def group_norm(self, groups: int, channels: int, *, eps: float = 1e-5) -> Any:
        return self.nn.GroupNorm(groups, channels, eps=eps)

    def embedding(self, number: int, size: int) -> Any:
        return self.nn.Embedding(number, size)

    def max_pool2d(self, kernel: int, stride: int) -> Any:
        return self.nn.MaxPool2d(kernel, stride)

    def avg_pool2d(self, kernel: int, stride: int) -> Any:
        return self.nn.AvgPool2d(kernel, stride)

    def dropout(self, probability: float) -> Any:
        return self.nn.Dropout(p=probability)

    def activation(self, name: str) -> Any:
        made = {
            "relu": self.nn.ReLU, "silu": self.nn.SiLU, "gelu": lambda: self.nn.GELU(approximate=False),
            "tanh": self.nn.Tanh, "gelu_tanh": lambda: self.nn.GELU(approximate=True),
            "leaky_relu": lambda: self.nn.LeakyReLU(0.2), "hardswish": self.nn.HSwish, "relu6": self.nn.ReLU6,
            "sigmoid": self.nn.Sigmoid, "elu": self.nn.ELU,
        }  # fmt: skip
        return made[name]()

    def recurrent(self, kind: str, before: int, after: int, *, layers: int = 1, both: bool = False) -> Any:
        return getattr(self.nn, kind)(before, after, num_layers=layers, bidirectional=both, batch_first=True)

    def parameter(self, array: np.ndarray, name: str) -> Any:
        return self._ms.Parameter(self._ms.Tensor(array.astype(np.float32)), name=name)

    # --- functions ---

    def tensor(self, array: np.ndarray) -> Any:
        return self._ms.Tensor(array, self._dtype if array.dtype == np.float32 else None)

    def cast(self, model: Any, dtype: str) -> None:
        """Switch the computation to another floating-point format."""
        self._dtype = getattr(self._ms, dtype)
        for parameter in model.get_parameters():
            parameter.set_dtype(self._dtype)

    def matmul(self, a: Any, b: Any) -> Any:
        return self._ops.matmul(a, b)

    def transpose(self, x: Any, *order: int) -> Any:
        return x.transpose(*order)

    def softmax(self, x: Any, axis: int = -1) -> Any:
        return self._ops.softmax(x, axis=axis)

    def log_softmax(self, x: Any, axis: int = -1) -> Any:
        return self._ops.log_softmax(x, axis=axis)

    def cat(self, parts: Sequence[Any], axis: int) -> Any:
        return self._ops.cat(parts, axis=axis)

    def stack(self, parts: Sequence[Any], axis: int) -> Any:
        return self._ops.stack(parts, axis=axis)

    def split(self, x: Any, size: int, axis: int) -> Any:
        return self._ops.split(x, size, axis=axis)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self._ops.where(condition, a, b)

    def masked_fill(self, x: Any, mask: Any, value: float) -> Any:
        return x.masked_fill(mask, value)

    def gather(self, x: Any, index: Any, axis: int) -> Any:
        return self._ops.gather_elements(x, axis, index)

    def take(self, x: Any, index: Any, axis: int) -> Any:
        return self._ops.gather(x, index, axis)

    def index_add(self, size: int, index: Any, x: Any) -> Any:
        zeros = self._ops.zeros((size, x.shape[-1]), x.dtype)
        return self._ops.tensor_scatter_add(zeros, index.reshape(-1, 1), x)

    def topk(self, x: Any, k: int, *, largest: bool = True) -> Any:
        return self._ops.topk(x, k, dim=-1, largest=largest)

    def sort(self, x: Any) -> Any:
        return self._ops.sort(x, axis=-1)

    def max(self, x: Any, axis: int) -> Any:
        return self._ops.max(x, axis=axis)

    def cumsum(self, x: Any, axis: int) -> Any:
        return self._ops.cumsum(x, axis=axis)

    def one_hot(self, x: Any, size: int) -> Any:
        return self._ops.one_hot(x, size, self._ms.Tensor(1.0), self._ms.Tensor(0.0))

    def mean(self, x: Any, axis: Any, *, keep: bool = False) -> Any:
        return x.mean(axis, keep_dims=keep)

    def sum(self, x: Any, axis: Any, *, keep: bool = False) -> Any:
        return x.sum(axis, keepdims=keep)

    def var(self, x: Any, axis: int) -> Any:
        return x.var(axis, keepdims=True)

    def unary(self, name: str, x: Any) -> Any:
        if name == "gelu":
            return self._ops.gelu(x, approximate="none")
        return getattr(self._ops, name)(x)

    def l2_normalize(self, x: Any) -> Any:
        return x / self._ops.sqrt((x * x).sum(-1, keepdims=True))

    def upsample(self, x: Any, size: tuple[int, int]) -> Any:
        return self._ops.interpolate(x, size=size, mode="nearest")

    def pad_left(self, x: Any, number: int) -> Any:
        return self._ops.pad(x, (number, 0))

    def half_and_back(self, x: Any, kind: str) -> Any:
        return x.astype(getattr(self._ms, kind)).astype(self._ms.float32)

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        return self._ops.cross_entropy(logits, labels)

    def binary_cross_entropy(self, logits: Any, labels: Any) -> Any:
        # On the CPU, gradients of MindSpore 2.10's own function depend on what ran before.
        return (self._ops.softplus(logits) - logits * labels).mean()

    def mse(self, x: Any, y: Any) -> Any:
        return self._ops.mse_loss(x, y)


def _of_conv(options: dict[str, Any]) -> dict[str, Any]:
    """Convert PyTorch's options of a convolution to MindSpore's."""
    renamed = {"groups": "group", "bias": "has_bias"}
    named = {renamed.get(name, name): value for name, value in options.items()}
    return {"padding": 0, "has_bias": True} | named | {"pad_mode": "pad"}


Words = TorchWords | MindSporeWords

WORDS = {"pytorch": TorchWords, "mindspore": MindSporeWords}

NORMS = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var",
         "embedding_table": "weight", "mean": "running_mean", "variance": "running_var"}  # fmt: skip
"""Names of MindSpore's parameters that differ from PyTorch's."""


def torch_name(name: str) -> str:
    """Return PyTorch's name of a parameter or buffer of MindSpore."""
    path, _, last = name.rpartition(".")
    return f"{path}.{NORMS.get(last, last)}" if path else NORMS.get(last, last)
