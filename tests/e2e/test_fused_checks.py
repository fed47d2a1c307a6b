"""Fused operators in a dump, recorded from kernels of another kind: right ones are right, and wrong ones are found."""

import sys
import types

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from torch.nn import functional

from msprobe_core.api_check.dump_check import check_dump
from msprobe_core.api_check.verdict import Verdict

HEADS = 4


class RmsNorm(torch.autograd.Function):
    """Kernels as a device has them: no function that PyTorch dispatches, and a backward of its own."""

    epsilon_factor = 1.0

    @staticmethod
    def forward(ctx, x, gamma, epsilon):
        wide = x.float()
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon * RmsNorm.epsilon_factor)
        ctx.save_for_backward(x, gamma)
        ctx.epsilon = epsilon
        return (wide * rstd * gamma.float()).to(x.dtype), rstd

    @staticmethod
    def backward(ctx, gradient, _):
        x, gamma = (each.detach().float().requires_grad_() for each in ctx.saved_tensors)
        with torch.enable_grad():
            result = functional.rms_norm(x, gamma.shape, gamma, ctx.epsilon)
        found = torch.autograd.grad(result, (x, gamma), gradient.float())
        return *(one.to(each.dtype) for one, each in zip(found, ctx.saved_tensors, strict=True)), None


class Attention(torch.autograd.Function):
    drops_last_key = False

    @staticmethod
    def forward(ctx, q, k, v, mask, scale):
        ctx.save_for_backward(q, k, v, mask)
        ctx.scale = scale
        with torch.enable_grad():
            scores, result = Attention.compute(q, k, v, mask, scale)
        largest = scores.amax(-1, keepdim=True)
        total = (scores - largest).exp().sum(-1, keepdim=True)
        statistics = [each.detach().expand(*each.shape[:-1], 8).contiguous() for each in (largest, total)]
        return result.detach(), *statistics, q.new_empty(0)

    @staticmethod
    def compute(q, k, v, mask, scale):
        scores = (q.float() @ k.float().transpose(-1, -2) * scale).masked_fill(mask, -torch.inf)
        if Attention.drops_last_key:
            scores = torch.cat((scores[..., :-1], torch.full_like(scores[..., -1:], -torch.inf)), -1)
        bias = torch.zeros_like(scores).masked_fill(scores == -torch.inf, -torch.inf).to(q.dtype)
        return scores, functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)

    @staticmethod
    def backward(ctx, gradient, *_):
        *inputs, mask = ctx.saved_tensors
        leaves = [each.detach().requires_grad_() for each in inputs]
        with torch.enable_grad():
            result = Attention.compute(*leaves, mask, ctx.scale)[1]
        return *torch.autograd.grad(result, leaves, gradient), None, None


def npu_rms_norm(self, gamma, epsilon=1e-6):
    return RmsNorm.apply(self, gamma, epsilon)


def npu_swiglu(x, dim=-1):
    return functional.silu(x.narrow(dim, 0, x.shape[dim] // 2)) * x.chunk(2, dim)[1]


def npu_rotary_mul(x, r1, r2):
    half = x.shape[-1] // 2
    return x * r1 + x.roll(half, -1) * r2 * torch.cat((-torch.ones(half), torch.ones(half))).to(x.dtype)


def npu_fusion_attention(query, key, value, head_num, input_layout, *, atten_mask, scale, pre_tockens, sparse_mode):
    rows, columns = query.shape[1], key.shape[1]
    mask = torch.ones(rows, columns, dtype=torch.bool).triu(1 + columns - rows)
    q, k, v = (each.unflatten(-1, (head_num, -1)).transpose(1, 2) for each in (query, key, value))
    result, *others = Attention.apply(q, k, v, mask, scale)
    return result.transpose(1, 2).flatten(2), *others, 0, 0, 0


FUNCTIONS = (npu_rms_norm, npu_swiglu, npu_rotary_mul, npu_fusion_attention)


@pytest.fixture
def npu(monkeypatch):
    module = types.ModuleType("torch_npu")
    for function in FUNCTIONS:
        made = types.FunctionType(function.__code__, globals(), function.__name__, function.__defaults__)
        made.__kwdefaults__, made.__module__ = function.__kwdefaults__, "torch_npu"
        setattr(module, function.__name__, made)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return module


def train(npu, dtype):
    torch.manual_seed(0)
    gamma, table = (torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in ((32,), (2, 6, 32)))
    x = npu.npu_rms_norm(table, gamma, epsilon=1e-5)[0]
    angles = torch.arange(6)[:, None] * torch.logspace(0, -2, 16).repeat(2)
    x = npu.npu_rotary_mul(x[None], angles.cos().to(dtype)[None, None], angles.sin().to(dtype)[None, None])[0]
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    options = {"atten_mask": mask, "scale": 8**-0.5, "pre_tockens": 2147483647, "sparse_mode": 3}
    x = npu.npu_fusion_attention(x, x * 2, x - 1, HEADS, "BSH", **options)[0]
    npu.npu_swiglu(x, dim=-1).float().pow(2).sum().backward()


def verdicts(place, npu, dtype):
    debugger = PrecisionDebugger(dump_path=place, level="L1", risk_level="ALL", task="tensor")
    try:
        with debugger.start():
            train(npu, dtype)
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    return {call.entry: call for call in check_dump(unit, workers=1) if call.entry.startswith("NPU.")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_right_kernels(dtype, tmp_path, npu):
    found = verdicts(tmp_path, npu, dtype)
    assert {entry: call.verdict for entry, call in found.items() if call.verdict is not Verdict.RIGHT} == {}
    names = {f"NPU.{function.__name__}.0.{phase}" for function in FUNCTIONS for phase in ("forward", "backward")}
    assert found.keys() == names
    assert len(found["NPU.npu_fusion_attention.0.forward"].outputs) >= 3  # maxima and sums too


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_wrong_kernels(dtype, tmp_path, npu, monkeypatch):
    monkeypatch.setattr(RmsNorm, "epsilon_factor", 1e4)
    monkeypatch.setattr(Attention, "drops_last_key", True)
    found = verdicts(tmp_path, npu, dtype)
    wrong = {entry for entry, call in found.items() if call.verdict is Verdict.WRONG}
    assert wrong == {
        "NPU.npu_rms_norm.0.forward",
        "NPU.npu_fusion_attention.0.forward",
        "NPU.npu_fusion_attention.0.backward",
    }
