"""The functions that may be called for a dump: numerical ones, which use no file, network or process.

A dump may be untrusted, so its names are never looked up in PyTorch, only in this table. The table also excludes
functions that create results of any size from scalars alone, and functions that were found to read beyond their inputs
when dumps were crafted for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from msprobe.pytorch._fused_reference import REFERENCES
from msprobe_core.plugin import LinearKind

Function = Callable[..., Any]

_FUNCTIONAL = """
    linear bilinear embedding embedding_bag scaled_dot_product_attention multi_head_attention_forward
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    layer_norm rms_norm group_norm batch_norm instance_norm local_response_norm normalize
    softmax log_softmax softmin gumbel_softmax relu relu_ relu6 elu elu_ selu selu_ celu celu_ leaky_relu leaky_relu_
    prelu rrelu rrelu_ glu gelu logsigmoid hardshrink softshrink tanhshrink softsign softplus tanh sigmoid hardsigmoid
    silu mish hardswish hardtanh hardtanh_ threshold threshold_
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout
    avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d lp_pool3d
    cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div mse_loss l1_loss smooth_l1_loss
    huber_loss cosine_embedding_loss gaussian_nll_loss poisson_nll_loss hinge_embedding_loss margin_ranking_loss
    soft_margin_loss triplet_margin_loss cosine_similarity pairwise_distance pdist
    pad interpolate upsample grid_sample affine_grid pixel_shuffle pixel_unshuffle channel_shuffle fold unfold
"""

_ELEMENTWISE = """
    abs absolute acos acosh add addcdiv addcmul arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan
    atan2 atanh ceil clamp clamp_max clamp_min clip copysign cos cosh cumprod cumsum deg2rad digamma div divide eq erf
    erfc erfinv exp exp2 expm1 fix float_power floor floor_divide fmod frac ge greater greater_equal gt hypot i0 ldexp
    le lerp less less_equal lgamma log log10 log1p log2 logical_and logical_not logical_or logical_xor logit lt
    masked_fill mul multiply nan_to_num ne neg negative not_equal pow rad2deg reciprocal relu remainder round rsqrt sgn
    sigmoid sign sin sinc sinh sqrt square sub subtract tan tanh true_divide trunc xlogy bitwise_and bitwise_not
    bitwise_or bitwise_xor addmm addmv addbmm baddbmm addr index_add index_copy index_fill index_put masked_scatter
    scatter scatter_add scatter_reduce tril triu squeeze unsqueeze transpose swapaxes swapdims t
"""
"""Functions that have a variant that writes to its first argument."""

_OTHERS = """
    adjoint all amax amin aminmax angle any argmax argmin argsort bmm broadcast_to chunk clone conj cov corrcoef
    count_nonzero cross cummax cummin det detach diag diag_embed diagonal diff dist dot expand expand_as flatten flip
    fliplr flipud fmax fmin gather ger heaviside index_select inner inverse isclose isfinite isinf isnan kron
    kthvalue log_softmax logaddexp logaddexp2 logcumsumexp logdet logsumexp masked_select matmul max maximum mean
    median min minimum mm movedim moveaxis msort mv nanmean nanmedian nansum narrow norm outer permute positive prelu
    prod quantile ravel repeat reshape reshape_as roll rot90 select slogdet softmax sort split split_with_sizes std
    sum swapaxes swapdims take take_along_dim tensor_split tile topk trace unbind unflatten var vdot view_as where
"""

_TENSOR_ONLY = """
    __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__
    __floordiv__ __rfloordiv__ __ifloordiv__ __mod__ __rmod__ __imod__ __pow__ __rpow__ __ipow__ __matmul__ __rmatmul__
    __neg__ __pos__ __abs__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __rand__ __ror__
    __rxor__ __iand__ __ior__ __ixor__ __getitem__ __setitem__ view to type_as float double half bfloat16 bool int long
    new_zeros new_ones new_full
    contiguous copy_ fill_ zero_ cpu unfold hardshrink
"""

_TORCH_ONLY = """
    cat concat concatenate stack hstack vstack dstack column_stack einsum tensordot chain_matmul addcmul addcdiv
    batch_norm layer_norm group_norm instance_norm rms_norm bilinear conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d convolution embedding gelu selu celu rsub threshold dropout alpha_dropout
    feature_dropout feature_alpha_dropout cosine_similarity pairwise_distance cdist baddbmm var_mean std_mean
    broadcast_tensors atleast_1d atleast_2d atleast_3d polar complex real imag clamp_min clamp_max lstm gru rnn_tanh
    rnn_relu zeros_like ones_like full_like zeros ones full arange linspace eye tensor as_tensor
    scalar_tensor
"""

_SUBMODULES = {
    "linalg": "norm vector_norm matrix_norm inv solve det slogdet cholesky qr svd eigh matmul cross",
    "fft": "fft ifft rfft irfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn fftshift ifftshift",
    "special": "erf erfc erfinv expit exp2 expm1 log1p log_softmax softmax logit logsumexp xlogy i0 sinc digamma",
}

_VF = "lstm gru rnn_tanh rnn_relu norm einsum"

RANDOM = frozenset(
    [
        "rand",
        "randn",
        "randint",
        "randperm",
        "normal",
        "bernoulli",
        "multinomial",
        "poisson",
        "rand_like",
        "randn_like",
        "randint_like",
        "uniform_",
        "normal_",
        "random_",
        "bernoulli_",
        "exponential_",
        "geometric_",
        "cauchy_",
        "log_normal_",
        "native_dropout",
        "trunc_normal_",
        "kaiming_uniform_",
        "kaiming_normal_",
        "xavier_uniform_",
        "xavier_normal_",
        "orthogonal_",
    ]
)
"""Functions that always draw random numbers."""


AMBIGUOUS = frozenset(["svd", "linalg_svd", "linalg_eigh", "linalg_eig", "linalg_qr", "qr", "geqrf", "lobpcg"])
"""Functions with several right results: vectors of any sign, or in any order of equal values."""


def find_function(prefix: str, name: str) -> Function | None:
    """Return the function for a name in a dump; ``None`` if it is not called for dumps."""
    return _table().get((prefix, name))


@cache
def _table() -> dict[tuple[str, str], Function]:
    return dict(_rows())


def _rows() -> Iterator[tuple[tuple[str, str], Function]]:
    written = [f"{name}_" for name in _ELEMENTWISE.split()]
    shared = [*_ELEMENTWISE.split(), *_OTHERS.split(), *written]
    yield from _members("Functional", functional, _FUNCTIONAL.split())
    yield from _members("Tensor", torch.Tensor, [*shared, *_TENSOR_ONLY.split()])
    yield from _members("Torch", torch, [*shared, *_TORCH_ONLY.split()])
    yield from _members("VF", torch._VF, _VF.split())
    for stem, names in _SUBMODULES.items():
        for (_, name), function in _members("", getattr(torch, stem), names.split()):
            yield ("Torch", f"{stem}_{name}"), function
    yield from REFERENCES.items()


def _members(prefix: str, namespace: Any, names: Sequence[str]) -> Iterator[tuple[tuple[str, str], Function]]:
    for name in names:
        function = getattr(namespace, name, None)  # not every release has all of them
        if callable(function):
            yield (prefix, name), function


_LINEAR = """
    linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution embedding fold unfold
    matmul mm bmm mv dot vdot inner outer ger kron __matmul__ __rmatmul__ linalg_matmul tensordot einsum
    addmm addmv addbmm baddbmm addr
    sum cumsum trace index_add scatter_add
    index_select gather take take_along_dim expand expand_as broadcast_to repeat tile __getitem__
"""
"""Functions that are linear in each of their floating-point tensors, also those whose gradients alone are sums."""


def linear_in(name: str) -> LinearKind | None:
    """See `msprobe_core.plugin.LinearFramework`."""
    if name == "mean":
        return LinearKind.MEAN
    stem = name if name.endswith("__") else name.removesuffix("_")
    return LinearKind.SUM if stem in _LINEAR.split() else None
