"""References of fused operators that this machine does not have, by the names that they have in dumps.

A fused operator of `torch_npu` is replayed as its documented formula, composed of PyTorch's functions: in float64 for
what it should have returned, and for the replay in its own precision with single precision inside, as its kernels
compute. All of them return results that are not larger than the product of the sizes of their arguments, and use no
file, network or process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msprobe.pytorch import _fused_attention as attention
from msprobe.pytorch import _fused_layers as layers
from msprobe.pytorch import _fused_optimizers as optimizers

Function = Callable[..., Any]

_FUNCTIONS: tuple[Function, ...] = (
    attention.npu_fusion_attention, attention.npu_fusion_attention_v2, attention.npu_fusion_attention_grad,
    attention.npu_fusion_attention_grad_v2, layers.fast_gelu, layers.npu_fast_gelu_backward, layers.npu_gelu,
    layers.npu_gelu_backward, layers.npu_silu, layers.npu_silu_backward, layers.npu_mish, layers.npu_mish_backward,
    layers.npu_swiglu, layers.npu_swiglu_backward, layers.npu_scaled_masked_softmax,
    layers.npu_scaled_masked_softmax_backward, layers.npu_rms_norm, layers.npu_rms_norm_backward,
    layers.npu_gemma_rms_norm, layers.npu_add_rms_norm, layers.npu_layer_norm_eval, layers.npu_group_norm_silu,
    layers.npu_group_norm_swish,
    layers.npu_cross_entropy_loss, layers.npu_cross_entropy_loss_backward, layers.npu_transpose,
    layers.npu_linear, layers.npu_linear_backward, layers.matmul_backward, layers.npu_rotary_mul,
    layers.npu_rotary_mul_backward, layers.npu_confusion_transpose, layers.npu_confusion_transpose_backward,
    layers.npu_moe_gating_top_k_softmax, layers.npu_sort_v2, optimizers.npu_apply_adam, optimizers.npu_apply_adam_w,
)  # fmt: skip

REFERENCES: Mapping[tuple[str, str], Function] = {
    **{("NPU", function.__name__): function for function in _FUNCTIONS},
    ("NPU", "npu_fast_gelu"): layers.fast_gelu,
    ("NPU", "npu_silu_"): layers.npu_silu,
    ("Aten", "matmul_backward"): layers.matmul_backward,
}
"""By prefix and name of an entry: ``NPU.npu_rms_norm.0.forward`` is ``("NPU", "npu_rms_norm")``."""
