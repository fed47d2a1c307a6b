"""A small network with wrong kernels, and how it is recorded."""

import json
import warnings
from contextlib import contextmanager
from inspect import signature

import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    """A layer with a norm, attention by hand, and a head; all of it in one module, with Linears inside."""

    def __init__(self, eps=1e-5, scale=1.0, shift=0):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32, eps=eps)
        self.head = nn.Linear(32, 8)
        self.scale, self.shift = scale, shift

    def forward(self, x, *, mask):
        y = self.norm(functional.gelu(self.fc(x)))
        mask = mask.roll(self.shift, 0)
        weights = functional.softmax((y @ y.transpose(-1, -2) / 32 * self.scale).masked_fill(mask, -30.0), dim=-1)
        return self.head(weights @ y)


def make_net():
    return Net()


def batch(dtype):
    torch.manual_seed(1)
    return torch.randn(6, 16, dtype=dtype, requires_grad=True), torch.ones(6, 6, dtype=torch.bool).triu(1)


def record(place, run, **config):
    """Run and record; return the directory of the one dump."""
    common = {"task": "tensor", "level": "mix", "risk_level": "ALL", "dump_path": str(place)}
    path = place.with_suffix(".json")
    path.write_text(json.dumps(common | config))
    debugger = PrecisionDebugger(str(path))
    try:
        run(debugger)
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    return unit


def train(dtype, make=make_net, change=lambda x: x):
    def run(debugger):
        model = make().to(dtype)
        x, mask = batch(dtype)
        with debugger.start(model):
            model(change(x), mask=mask).float().pow(2).mean().backward()

    return run


def call(function, *args):
    """Record one function at level L1."""

    def run(debugger):
        with debugger.start():
            function(*args)

    return run


# --- faults of kernels: the recorded arguments are right, and what came out is not ------------------------------


@contextmanager
def kernel(name, function):
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced, which is what is wanted
        allowed = {"allow_override": True} if "allow_override" in signature(library.impl).parameters else {}
        library.impl(name, function, "CPU", **allowed)
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def patched(owner, name, make):
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def scaled_gelu(x, *, approximate="none"):
    wide = x.double()
    return (wide * (1 + torch.erf(wide / 2**0.5)) / 2 * 1.02).to(x.dtype)


def scaled_gelu_backward(gradient, x, *, approximate="none"):
    wide = x.double()
    slope = (1 + torch.erf(wide / 2**0.5)) / 2 + wide * torch.exp(-(wide**2) / 2) / (2 * torch.pi) ** 0.5
    return (gradient.double() * slope * 0.97).to(x.dtype)


def without_bias(bias, x, weight, *, beta=1, alpha=1):
    return torch.mm(x, weight)


def other_eps(layer_norm):
    return lambda x, shape, weight, bias, eps, *rest: layer_norm(x, shape, weight, bias, 0.1, *rest)


def in_half_precision(softmax):
    return lambda x, *args, **kwargs: softmax(x.bfloat16(), *args, **kwargs).to(x.dtype)


def shifted_mask(x, mask, value):
    return torch.where(mask.roll(1, 0), torch.tensor(value, dtype=x.dtype), x)


FAULTS = {
    "scale": (lambda: kernel("gelu", scaled_gelu), "Functional.gelu.0.forward"),
    "eps": (lambda: patched(torch, "layer_norm", other_eps), "Functional.layer_norm.0.forward"),
    "bias": (lambda: kernel("addmm", without_bias), "Functional.linear.0.forward"),
    "mask": (lambda: kernel("masked_fill.Scalar", shifted_mask), "Tensor.masked_fill.0.forward"),
    "gradient": (lambda: kernel("gelu_backward", scaled_gelu_backward), "Functional.gelu.0.backward"),
    "cast": (lambda: patched(torch.Tensor, "softmax", in_half_precision), "Functional.softmax.0.forward"),
}
