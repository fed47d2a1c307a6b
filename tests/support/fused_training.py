"""A training that calls fused operators, of a module that has the name of torch_npu and runs on the CPU."""

import importlib
import sys
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger

STAND_IN = Path(__file__).parent / "npu_stand_in"
"""Directory that has it by the name of the package."""

NAMES = ("npu_rms_norm", "npu_swiglu", "npu_rotary_mul", "npu_fusion_attention")
HEADS = 4


def import_stand_in(monkeypatch):
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    module = importlib.import_module("torch_npu")
    monkeypatch.setitem(sys.modules, "torch_npu", module)  # so that it is removed afterwards
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


def record(place, npu, dtype):
    """Return the directory of the dump of one step."""
    debugger = PrecisionDebugger(dump_path=place, level="L1", risk_level="ALL", task="tensor")
    try:
        with debugger.start():
            train(npu, dtype)
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    return unit
