"""Programs with fused operators of torch_npu, a stand-in, on the simulated device."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from device_programs import KERNELS, Fault
from device_runs import Run, recorded, state_of, watched
from msprobe.pytorch._fused_reference import REFERENCES
from simulated_device import BLOCKS, simulated_device
from torch import Tensor, nn
from torch_npu_stand_in import torch_npu

_WIDTH, _HEADS = 16, 2

NAMES = [name for prefix, name in REFERENCES if prefix == "NPU"]
"""Of all operators that msprobe has a formula of."""


class FusedNet(nn.Module):
    """A layer of a large model as it is written for Ascend: norms, rotations, attention and gates are fused."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, _WIDTH)
        self.gammas = nn.ParameterList(torch.ones(_WIDTH) for _ in range(2))
        self.attend, self.join = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False), nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
        self.head = nn.Linear(_WIDTH, 11, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        npu, x = torch_npu(), self.embed(tokens)
        batch, length = tokens.shape
        angles = torch.arange(length * _WIDTH // _HEADS, device=x.device).reshape(1, length, 1, -1) / 7
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        query, key, value = (
            part.reshape(batch, length, _HEADS, -1)
            for part in self.attend(npu.npu_rms_norm(x, self.gammas[0])[0]).chunk(3, -1)
        )
        query, key = npu.npu_rotary_mul(query, cos, sin), npu.npu_rotary_mul(key, cos, sin)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = npu.npu_fusion_attention(query, key, value, _HEADS, "BSND", atten_mask=mask, scale=0.3)[0]
        x = x + self.join(mixed.flatten(-2))
        inner = npu.npu_rms_norm(x, self.gammas[1])[0]
        x = x + self.down(npu.npu_swiglu(self.up(inner), dim=-1))
        x = npu.npu_fast_gelu(npu.npu_confusion_transpose(x, [0, 2, 1], list(x.shape), False))
        return self.head(torch.ops.npu.npu_silu(x.transpose(1, 2)))  # by its operator, which is recorded too


class FusedAdamW:
    """AdamW by one fused operator for each parameter."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters, self.num_steps = parameters, 0
        self.state = {each: {"m": torch.zeros_like(each), "v": torch.zeros_like(each)} for each in parameters}

    @torch.no_grad()
    def step(self) -> None:
        powers = 0.9**self.num_steps, 0.99**self.num_steps
        for each in self.parameters:
            out = each, self.state[each]["m"], self.state[each]["v"]
            torch_npu().npu_apply_adam_w(
                *powers, 1e-2, 0.1, 0.9, 0.99, 1e-8, each.grad, None, False, False, out=out
            )  # fmt: skip
            each.grad = None
        self.num_steps += 1


def train(place: Path | None, level: str = "", task: str = "", options: Mapping[str, Any] | None = None) -> Run:
    """Train two steps in bfloat16, recorded to ``place`` if it is given."""
    torch_npu()
    simulated, run = simulated_device(), Run()
    simulated.clock.lag, simulated.lacks = 0, set()
    simulated.clock.unordered.clear()
    torch.manual_seed(3)
    model = FusedNet().to(torch.bfloat16).to("npu")
    tokens = torch.randint(11, (2, 3, 6)).to("npu")
    optimizer = FusedAdamW(list(model.parameters()))
    losses: list[Tensor] = []
    with ExitStack() as stack:
        step = stack.enter_context(recorded(place, level, task, options)(model, optimizer)) if place else ExitStack
        for batch in tokens:
            with step(), watched(run):
                logits = model(batch).flatten(0, 1)
                loss = torch_npu().npu_cross_entropy_loss(logits, batch.flatten())[0]
                loss.sum().backward()
                losses.append(loss.detach())
                gradients = {f"{name} grad {len(losses)}": each.grad for name, each in model.named_parameters()}
                optimizer.step()
            run.state |= state_of({name: each for name, each in gradients.items() if each is not None})
    run.unordered = [*simulated.clock.unordered]
    run.state |= state_of(
        {f"loss {number}": loss for number, loss in enumerate(losses)} | dict(model.named_parameters())
    )
    run.state |= state_of(
        {f"{i} {key}": value for i, one in enumerate(optimizer.state.values()) for key, value in one.items()}
    )
    return run


def _leaf(*shape: int) -> Tensor:
    return _plain(*shape).requires_grad_()


def _plain(*shape: int) -> Tensor:
    return torch.randn(*shape).to("npu")


def samples() -> Mapping[str, tuple[Sequence[Any], Mapping[str, Any]]]:
    """Return arguments of each operator; those that have gradients take them."""
    npu = torch_npu()
    attention = [_leaf(2, 4, 2, 8) for _ in range(3)]
    mask = {"atten_mask": torch.ones(4, 4, dtype=torch.bool).triu(1).to("npu")}
    few = torch.rand(3, 4, 8) > 0.6
    few[..., 0] = False
    few, labels = few.to("npu"), torch.tensor([1, 0, 2, 1]).to("npu")
    state = [torch.rand(6).to("npu") for _ in range(3)]
    with torch.no_grad():
        result, maxima, sums, *_ = npu.npu_fusion_attention(*attention, 2, "BSND", **mask, scale=0.35)
    back = [*(each.detach() for each in attention), torch.ones_like(result), 2, "BSND"]
    saved = {**mask, "scale_value": 0.35, "softmax_max": maxima, "softmax_sum": sums, "attention_in": result}
    return {
        "npu_fusion_attention": ([*attention, 2, "BSND"], {**mask, "scale": 0.35}),
        "npu_fusion_attention_v2": ([*attention, 2, "BSND"], {**mask, "scale": 0.35}),
        "npu_fusion_attention_grad": (back, saved),
        "npu_fusion_attention_grad_v2": (back, saved),
        "fast_gelu": ([_leaf(3, 8)], {}),
        "npu_fast_gelu": ([], {"self": _leaf(3, 8)}),
        "npu_fast_gelu_backward": ([_plain(3, 8), _plain(3, 8)], {}),
        "npu_gelu": ([_leaf(3, 8)], {"approximate": "tanh"}),
        "npu_gelu_backward": ([_plain(3, 8), _plain(3, 8)], {"approximate": "tanh"}),
        "npu_silu": ([_leaf(3, 8)], {}),
        "npu_silu_": ([_plain(3, 8)], {}),
        "npu_silu_backward": ([_plain(3, 8), _plain(3, 8), _plain(3, 8)], {}),
        "npu_mish": ([_leaf(3, 8)], {}),
        "npu_mish_backward": ([_plain(3, 8), _plain(3, 8)], {}),
        "npu_swiglu": ([], {"self": _leaf(3, 8)}),
        "npu_swiglu_backward": ([_plain(3, 4), _plain(3, 8)], {}),
        "npu_scaled_masked_softmax": ([_leaf(3, 4, 8), few, 0.5], {}),
        "npu_scaled_masked_softmax_backward": ([_plain(3, 4, 8), _plain(3, 4, 8).softmax(-1), few, 0.5, False], {}),
        "npu_rms_norm": ([_leaf(3, 8), _leaf(8)], {}),
        "npu_rms_norm_backward": ([_plain(3, 8), _plain(3, 8), _plain(8), _plain(3, 1).exp()], {}),
        "npu_gemma_rms_norm": ([_plain(3, 8), _plain(8)], {}),
        "npu_add_rms_norm": ([_plain(3, 8), _plain(3, 8), _plain(8)], {}),
        "npu_layer_norm_eval": ([_plain(3, 8), [8], _plain(8)], {}),
        "npu_group_norm_silu": ([_plain(2, 4, 3), _plain(4), _plain(4), 2], {}),
        "npu_group_norm_swish": ([_plain(2, 4, 3), 2, _plain(4), _plain(4)], {}),
        "npu_cross_entropy_loss": ([_leaf(4, 5), labels], {"label_smoothing": 0.1}),
        "npu_cross_entropy_loss_backward": ([_plain(1), _plain(4, 5).log_softmax(-1), labels], {}),
        "npu_transpose": ([_plain(2, 3, 4), [2, 0, 1]], {}),
        "npu_linear": ([_leaf(3, 8), _leaf(4, 8)], {}),
        "npu_linear_backward": ([_plain(3, 4), _plain(3, 8), _plain(4, 8)], {}),
        "matmul_backward": ([_plain(3, 5), _plain(3, 4), _plain(4, 5), [True, True]], {}),
        "npu_rotary_mul": ([], {"self": _leaf(2, 4, 2, 8), "r1": _leaf(1, 4, 1, 8), "r2": _leaf(1, 4, 1, 8)}),
        "npu_rotary_mul_backward": (
            [_plain(2, 4, 2, 8), _plain(2, 4, 2, 8), _plain(1, 4, 1, 8), _plain(1, 4, 1, 8), "interleave"], {},
        ),
        "npu_confusion_transpose": ([_leaf(2, 3, 4), [0, 2, 1], [2, 12], True], {}),
        "npu_confusion_transpose_backward": ([_plain(2, 12), [0, 2, 1], [2, 3, 4], False], {}),
        "npu_moe_gating_top_k_softmax": ([_plain(5, 8)], {"k": 2}),
        "npu_sort_v2": ([_plain(3, 8)], {"descending": True}),
        "npu_apply_adam": ([0.81, 0.98, 0.1, 0.9, 0.99, 1e-8, _plain(6), False, False], {"out": state}),
        "npu_apply_adam_w": (
            [0.9, 0.99, 0.1, 0.01, 0.9, 0.99, 1e-8, _plain(6), None, False, False], {"out": state},
        ),
    }  # fmt: skip


def declared() -> Mapping[str, tuple[list[str], list[str]]]:
    """Return the names of the arguments of each operator, and those that its formula takes."""
    torch_npu(), simulated_device()
    return {
        name: (
            [each.name for each in getattr(torch.ops.npu, name).default._schema.arguments],
            list(inspect.signature(REFERENCES["NPU", name]).parameters),
        )
        for name in samples()
        if "default" in getattr(torch.ops.npu, name).overloads()
    }


def call_all(place: Path, faults: Sequence[Fault] = ()) -> list[str]:
    """Record a call of each operator, with its backward if it has one; return by what the host has waited."""
    npu, device = torch_npu(), simulated_device()
    device.lacks = set()
    torch.manual_seed(5)
    calls = samples()
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(device.wrong(f"npu::{fault.operator}", KERNELS[fault.kernel]))
        step = stack.enter_context(recorded(place, "L1", "tensor")(nn.Identity(), None))
        stack.enter_context(step())
        device.clock.waits.clear()
        for name, (args, kwargs) in calls.items():
            result = getattr(npu, name)(*args, **kwargs)
            first = result[0] if isinstance(result, tuple | list) else result
            if first.requires_grad:
                first.sum().backward()
        return [wait.reason for wait in device.clock.waits if wait.thread != "msprobe-writer"]


def reduced_in_blocks(kind: str) -> Mapping[str, Any]:
    """Reduce a matrix in the format FRACTAL_NZ, and views of it; return what is so, by the name of the view."""
    from msprobe.pytorch._reduce import TorchReducer

    from msprobe_core.plugin import Digest

    simulated, npu = simulated_device(), torch_npu()
    simulated.clock.lag, simulated.lacks = 0, set()
    torch.manual_seed(5)
    plain = torch.randn(32, 48)
    blocks = npu.npu_format_cast(plain.to("npu"), BLOCKS)
    reducer, found = TorchReducer(), dict[str, Any]()
    for name, view in {"whole": lambda x: x, "rows": lambda x: x[3:20], "transposed": lambda x: x.t()}.items():
        simulated.clock.waits.clear()
        digests = [Digest(), Digest()]
        for each, digest in zip((blocks, plain), digests, strict=True):
            getattr(reducer, kind)(view(each), digest)
        waits = [*simulated.clock.waits]
        reducer.collect()
        found[name] = {"same": digests[0].checksum == digests[1].checksum is not None, "waits": waits}
    found["format"] = npu.get_npu_format(blocks)
    return found


def recorded_in_blocks(place: Path) -> Run:
    """Record a module whose weight is in the format FRACTAL_NZ."""
    simulated, npu, run = simulated_device(), torch_npu(), Run()
    simulated.clock.lag, simulated.lacks = 0, set()
    torch.manual_seed(5)
    model = nn.Linear(48, 32).to("npu")
    model.weight = nn.Parameter(npu.npu_format_cast(model.weight.detach(), BLOCKS))
    x = torch.ones(2, 48).to("npu")
    with recorded(place, "L1", "tensor")(model, None) as step, step(), watched(run):
        model(x).sum().backward()
    run.state = state_of({"weight": model.weight})
    return run
