"""A stand-in of the module ``torch_npu`` for the simulated device: the fused operators that msprobe has formulas of.

They have names, arguments, defaults and results of torch_npu's: operators of the namespace ``npu``, which the module
has as attributes, with gradients that are operators too and that no function mode sees. Each is one operator of the
device, so it can be replaced by a wrong kernel. What they compute is msprobe's own formula: of Ascend's kernels they
show nothing. It also casts tensors to memory formats.

Source of the signatures: ``op_plugin/config/op_plugin_functions.yaml`` and ``derivatives.yaml`` of the repository
op-plugin, of 2026-08-21.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from msprobe.pytorch._fused_reference import REFERENCES
from torch import Tensor
from torch.utils._pytree import tree_map_only

_ATTENTION = (
    "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None",
    "float keep_prob=1.",
    "int inner_precise=0",
    (
        "int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
        "bool gen_mask_parallel=True, bool sync=False"
    ),
)
_TYPE = ", int pse_type=1, int[]? q_start_idx=None, int[]? kv_start_idx=None"
_ROPE = ", Tensor? query_rope=None, Tensor? key_rope=None"
_SINK, _SEED = ', str softmax_layout="", Tensor? sink=None', "Tensor? dropout_mask=None, int seed=0, int offset=0"
_MOST = 2147483647
_SAVED = "Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None"
_ADAM = "Scalar beta1, Scalar beta2, Scalar epsilon, Tensor grad"
_STATE = "*, Tensor(a!) var, Tensor(b!) m, Tensor(c!) v) -> (Tensor(a!), Tensor(b!), Tensor(c!)"


def _attention(suffix: str = "") -> str:
    masks, keep, precise, rest = _ATTENTION
    if suffix:
        star, rope, window, kind = "*, ", _ROPE, "tokens", _TYPE
    else:
        star, rope, window, kind = "", "", "tockens", ""  # codespell:ignore tockens
    return (
        f"npu_fusion_attention{suffix}(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, {star}"
        f"{masks}{rope}, float scale=1., {keep}, int pre_{window}={_MOST}, int next_{window}={_MOST}, {precise}, "
        f"{rest}{kind}{_SINK}, {_SEED}) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
    )


def _attention_grad(suffix: str = "") -> str:
    masks, keep, precise, rest = _ATTENTION
    if suffix:
        rope, window, kind, more = _ROPE, "tokens", _TYPE, ", Tensor, Tensor"
    else:
        rope, window, kind, more = "", "tockens", "", ""  # codespell:ignore tockens
    return (
        f"npu_fusion_attention_grad{suffix}(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, "
        f"str input_layout, *, {masks}, {_SAVED}{rope}, float scale_value=1., {keep}, int pre_{window}={_MOST}, "
        f"int next_{window}={_MOST}, {precise}, int seed=0, int offset=0, int numels=0, {rest}{kind}{_SINK}) "
        f"-> (Tensor, Tensor, Tensor, Tensor, Tensor{more})"
    )


SCHEMAS: Sequence[str] = (
    _attention(), _attention("_v2"), _attention_grad(), _attention_grad("_v2"),
    "fast_gelu(Tensor self) -> Tensor",
    "npu_fast_gelu(Tensor self) -> Tensor",
    "npu_fast_gelu_backward(Tensor grad, Tensor self) -> Tensor",
    "npu_gelu(Tensor self, *, str approximate='none') -> Tensor",
    "npu_gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor",
    "npu_silu(Tensor self) -> Tensor",
    "npu_silu_(Tensor(a!) self) -> Tensor(a!)",
    "npu_silu_backward(Tensor grad_output, Tensor x0, Tensor x1) -> Tensor",
    "npu_mish(Tensor self) -> Tensor",
    "npu_mish_backward(Tensor grad, Tensor input) -> Tensor",
    "npu_swiglu(Tensor self, int dim=-1) -> Tensor",
    "npu_swiglu_backward(Tensor grad_output, Tensor self, int dim=-1) -> Tensor",
    "npu_scaled_masked_softmax(Tensor x, Tensor mask, Scalar scale=1, bool fixed_triu_mask=False) -> Tensor",
    ("npu_scaled_masked_softmax_backward(Tensor y_grad, Tensor y, Tensor mask, Scalar scale, bool fixed_triu_mask)"
    " -> Tensor"),
    "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    "npu_rms_norm_backward(Tensor dy, Tensor self, Tensor gamma, Tensor rstd) -> (Tensor, Tensor)",
    "npu_gemma_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
    ("npu_layer_norm_eval(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
    "float eps=1e-05) -> Tensor"),
    ("npu_group_norm_silu(Tensor input, Tensor? weight, Tensor? bias, int group, float eps=0.00001)"
    " -> (Tensor, Tensor, Tensor)"),
    ("npu_group_norm_swish(Tensor input, int num_groups, Tensor weight, Tensor bias, float? eps=1e-5, "
    "float? swish_scale=1.0) -> (Tensor, Tensor, Tensor)"),
    ("npu_cross_entropy_loss(Tensor input, Tensor target, Tensor? weight=None, str reduction='mean', "
    "int ignore_index=-100, float label_smoothing=0.0, float lse_square_scale_for_zloss=0.0, bool return_zloss=False)"
    " -> (Tensor, Tensor, Tensor, Tensor)"),
    ("npu_cross_entropy_loss_backward(Tensor grad_loss, Tensor log_prob, Tensor target, Tensor? weight=None, "
    "Tensor? grad_zloss=None, Tensor? lse_for_zloss=None, str reduction='mean', int ignore_index=-100, "
    "float label_smoothing=0.0, float lse_square_scale_for_zloss=0.0) -> Tensor"),
    "npu_transpose(Tensor self, int[] perm, bool require_contiguous=True) -> Tensor",
    "npu_linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    "npu_linear_backward(Tensor grad, Tensor input, Tensor weight) -> (Tensor, Tensor)",
    "matmul_backward(Tensor grad, Tensor self, Tensor other, bool[2] mask) -> (Tensor, Tensor)",
    "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor",
    ("npu_rotary_mul_backward(Tensor grad, Tensor self, Tensor r1, Tensor r2, str rotary_mode='half')"
    " -> (Tensor, Tensor, Tensor)"),
    "npu_confusion_transpose(Tensor self, int[] perm, int[] shape, bool transpose_first) -> Tensor",
    "npu_confusion_transpose_backward(Tensor grad, int[] perm, SymInt[] shape, bool transpose_first) -> Tensor",
    "npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> (Tensor, Tensor, Tensor)",
    "npu_sort_v2(Tensor self, int dim=-1, bool descending=False) -> Tensor",
    (f"npu_apply_adam.out(Scalar beta1_power, Scalar beta2_power, Scalar lr, {_ADAM}, bool? use_locking, "
    f"bool? use_nesterov, {_STATE})"),
    ("npu_apply_adam_w.out(Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar weight_decay, "
    f"{_ADAM}, Tensor? max_grad_norm, bool? amsgrad, bool? maximize, {_STATE})"),
)  # fmt: skip
"""As torch_npu declares them, without variants that msprobe has no formula of."""

_Gradient = Callable[[Any, Mapping[str, Any], Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Given the operators, the arguments, the results and their gradients: the gradients of the first arguments."""


def _of_attention(suffix: str, npu: Any, a: Mapping[str, Any], out: Sequence[Any], grads: Sequence[Any]) -> Any:
    named = {
        key: value for key, value in a.items()
        if key not in ("query", "key", "value", "head_num", "input_layout", "scale", "dropout_mask", "seed", "offset")
    }  # fmt: skip
    backward = getattr(npu, f"npu_fusion_attention_grad{suffix}")
    found = backward(
        a["query"], a["key"], a["value"], grads[0], a["head_num"], a["input_layout"], softmax_max=out[1],
        softmax_sum=out[2], softmax_in=out[3], attention_in=out[0], scale_value=a["scale"], **named,
    )  # fmt: skip
    return found[:3]


_GRADIENTS: Mapping[str, _Gradient] = {
    "npu_fusion_attention": partial(_of_attention, ""),
    "npu_fusion_attention_v2": partial(_of_attention, "_v2"),
    "fast_gelu": lambda npu, a, out, g: [npu.npu_fast_gelu_backward(g[0], a["self"])],
    "npu_fast_gelu": lambda npu, a, out, g: [npu.npu_fast_gelu_backward(g[0], a["self"])],
    "npu_gelu": lambda npu, a, out, g: [npu.npu_gelu_backward(g[0], a["self"], approximate=a["approximate"])],
    "npu_silu": lambda npu, a, out, g: [npu.npu_silu_backward(g[0], a["self"], out[0])],
    "npu_mish": lambda npu, a, out, g: [npu.npu_mish_backward(g[0], a["self"])],
    "npu_swiglu": lambda npu, a, out, g: [npu.npu_swiglu_backward(g[0], a["self"], a["dim"])],
    "npu_scaled_masked_softmax": lambda npu, a, out, g: [
        npu.npu_scaled_masked_softmax_backward(g[0], out[0], a["mask"], a["scale"], a["fixed_triu_mask"])
    ],
    "npu_rms_norm": lambda npu, a, out, g: npu.npu_rms_norm_backward(g[0], a["self"], a["gamma"], out[1]),
    "npu_cross_entropy_loss": lambda npu, a, out, g: [
        npu.npu_cross_entropy_loss_backward(
            g[0], out[1], a["target"], a["weight"], None, None, a["reduction"], a["ignore_index"], a["label_smoothing"]
        )
    ],
    "npu_linear": lambda npu, a, out, g: npu.npu_linear_backward(g[0], a["input"], a["weight"]),
    "npu_rotary_mul": lambda npu, a, out, g: npu.npu_rotary_mul_backward(
        g[0], a["self"], a["r1"], a["r2"], a["rotary_mode"]
    ),
    "npu_confusion_transpose": lambda npu, a, out, g: [
        npu.npu_confusion_transpose_backward(g[0], a["perm"], list(a["self"].shape), not a["transpose_first"])
    ],
}


def _kernel(name: str, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator; its results share no memory with its arguments."""
    # Formulas of gradients are those of their forwards, differentiated.
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.AutogradFunctionality)
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        result = tree_map_only(Tensor, Tensor.detach, REFERENCES["NPU", name](*args, **kwargs))
    return tree_map_only(Tensor, lambda each: each.clone(memory_format=torch.contiguous_format), result)


def _kernel_in_place(target: Tensor) -> Tensor:
    return target.copy_(_kernel("npu_silu", target))


def _kernel_of_step(name: str, *args: Any, var: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    for target, result in zip((var, m, v), _kernel(name, *args, out=(var, m, v)), strict=True):
        target.copy_(result)
    return var, m, v


class _Differentiated(torch.autograd.Function):
    """An operator with its gradient; of torch_npu this is C++, which no function mode sees."""

    @staticmethod
    def forward(ctx: Any, name: str, keys: Sequence[str], *values: Any) -> Any:
        named = dict(zip(keys, values, strict=True))
        with torch._C._AutoDispatchBelowAutograd():
            output = getattr(torch.ops.npu, name).default(**named)
        results = [each for each in (output if isinstance(output, tuple) else (output,)) if isinstance(each, Tensor)]
        ctx.name, ctx.keys = name, keys
        ctx.tensors = [key for key, value in named.items() if isinstance(value, Tensor)]
        ctx.others = {key: value for key, value in named.items() if not isinstance(value, Tensor)}
        ctx.save_for_backward(*(named[key] for key in ctx.tensors), *results)
        ctx.mark_non_differentiable(*results[1:])
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        tensors, results = dict(zip(ctx.tensors, saved)), saved[len(ctx.tensors) :]  # noqa: B905
        with torch._C.DisableTorchFunction():
            found = _GRADIENTS[ctx.name](torch.ops.npu, {**ctx.others, **tensors}, results, grads)
        return None, None, *found, *(None for _ in range(len(ctx.keys) - len(found)))


def _differentiated(name: str, *args: Any, **kwargs: Any) -> Any:
    parameters = getattr(torch.ops.npu, name).default._schema.arguments
    given = {**dict(zip([each.name for each in parameters], args)), **kwargs}  # noqa: B905
    named = {each.name: given.get(each.name, each.default_value) for each in parameters}
    with torch._C.DisableTorchFunction():
        return _Differentiated.apply(name, tuple(named), *named.values())


def _with_out(operator: Any) -> Callable[..., Any]:
    def step(*args: Any, out: Sequence[Tensor]) -> Any:
        return operator.out(*args, var=out[0], m=out[1], v=out[2])

    return step


@cache
def _library() -> torch.library.Library:
    return torch.library.Library("npu", "DEF")


@cache
def torch_npu() -> Any:
    """Return the module, and let the process import it as ``torch_npu``."""
    library, module = _library(), types.ModuleType("torch_npu")
    for schema in SCHEMAS:
        library.define(schema)
        whole = schema.partition("(")[0]
        name, _, overload = whole.partition(".")
        kernel = partial(_kernel_of_step if overload else _kernel, name)
        library.impl(whole, _kernel_in_place if name.endswith("_") else kernel, "CPU")
        operator = getattr(torch.ops.npu, name)
        setattr(module, name, _with_out(operator) if overload else operator)
    library.define("npu_format_cast(Tensor self, int acl_format) -> Tensor")
    library.impl("npu_format_cast", lambda values, _: values.clone(), "CPU")  # of what the format is, see the device
    vars(module).update(npu_format_cast=torch.ops.npu.npu_format_cast, get_npu_format=lambda tensor: tensor.format)
    for name in _GRADIENTS:
        library.impl(name, partial(_differentiated, name), "AutogradPrivateUse1")
    sys.modules["torch_npu"] = module
    return module
