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

from msprobe.pytorch import _replay_aten
from msprobe.pytorch import _replay_stand_ins as stand_ins
from msprobe.pytorch._fused_reference import REFERENCES
from msprobe.pytorch._optimizer_formulas import FORMULAS as OPTIMIZER_STEPS
from msprobe_core.plugin import LinearKind

Function = Callable[..., Any]

_BOUNDED_FUNCTIONAL = """
    linear embedding scaled_dot_product_attention layer_norm rms_norm group_norm batch_norm instance_norm normalize
    softmax log_softmax softmin relu relu_ relu6 elu selu celu leaky_relu prelu glu gelu logsigmoid hardshrink
    softshrink tanhshrink softsign softplus tanh sigmoid hardsigmoid silu mish hardswish hardtanh threshold dropout
    cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div mse_loss l1_loss smooth_l1_loss
    huber_loss cosine_similarity
"""

_OTHER_FUNCTIONAL = """
    bilinear embedding_bag multi_head_attention_forward
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    local_response_norm gumbel_softmax elu_ selu_ celu_ leaky_relu_ rrelu rrelu_ hardtanh_ threshold_
    dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout
    avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d lp_pool3d
    max_unpool1d max_unpool2d max_unpool3d
    linear_cross_entropy cosine_embedding_loss gaussian_nll_loss poisson_nll_loss hinge_embedding_loss
    margin_ranking_loss soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss multi_margin_loss
    multilabel_margin_loss multilabel_soft_margin_loss pairwise_distance pdist
    pad interpolate upsample grid_sample affine_grid pixel_shuffle pixel_unshuffle channel_shuffle fold unfold
"""

_ELEMENTWISE = """
    abs absolute acos acosh add addcdiv addcmul arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan
    atan2 atanh ceil clamp clamp_max clamp_min clip copysign cos cosh cumprod cumsum deg2rad digamma div divide eq erf
    erfc erfinv exp exp2 expm1 fix float_power floor floor_divide fmod frac gcd ge greater greater_equal gt hypot i0
    igamma igammac lcm ldexp le lerp less less_equal lgamma log log10 log1p log2 logical_and logical_not logical_or
    logical_xor logit lt masked_fill mul multiply nan_to_num ne neg negative nextafter not_equal polygamma pow rad2deg
    reciprocal relu remainder renorm round rsqrt sgn sigmoid sign sin sinc sinh sqrt square sub subtract tan tanh
    true_divide trunc xlogy bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor addmm
    addmv addbmm baddbmm addr index_add index_copy index_fill index_put index_reduce masked_scatter put scatter
    scatter_add scatter_reduce tril triu squeeze unsqueeze transpose swapaxes swapdims t conj_physical
"""
"""Functions that have a variant that writes to its first argument."""

_OTHERS = """
    adjoint all amax amin aminmax angle any argmax argmin argsort argwhere bmm bucketize conj clone
    count_nonzero cross cummax cummin cumulative_trapezoid det detach diagonal diagonal_scatter diff dist dot expand_as
    flatten flip fliplr flipud fmax fmin frexp gather ger heaviside index_select inner inverse isclose isfinite isin
    isinf isnan isneginf isposinf isreal kron kthvalue log_softmax logaddexp logaddexp2 logcumsumexp logdet logsumexp
    masked_select matmul max maximum mean median min minimum mm mode movedim moveaxis msort mv nanmean nanmedian
    nansum narrow narrow_copy nonzero norm outer permute positive prelu prod ravel reshape reshape_as resolve_conj
    resolve_neg roll rot90 searchsorted select select_scatter signbit slice_scatter slogdet softmax sort std sum
    swapaxes swapdims take take_along_dim topk trace trapezoid trapz unbind unflatten unique unique_consecutive var
    vdot view_as view_as_complex view_as_real where alias_copy diagonal_copy permute_copy squeeze_copy t_copy
    transpose_copy unbind_copy unsqueeze_copy detach_copy select_copy slice_copy view_as_complex_copy view_as_real_copy
    matrix_power
"""
"""Like those above, the results are bounded by the tensors: numbers among the arguments do not make them larger."""

_ENLARGING = """
    broadcast_to chunk diag diag_embed diagflat dsplit expand expand_copy hsplit histc
    nanquantile quantile repeat split split_with_sizes split_with_sizes_copy stft sum_to_size tensor_split tile
    split_copy unfold_copy unsafe_chunk unsafe_split view_copy vsplit cholesky cholesky_inverse cholesky_solve
    matrix_exp pinverse qr svd triangular_solve
"""
"""Functions whose results may be larger than their arguments, because of numbers among these."""

_TENSOR_ONLY = """
    __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__
    __floordiv__ __rfloordiv__ __ifloordiv__ __mod__ __rmod__ __imod__ __pow__ __rpow__ __ipow__ __matmul__ __rmatmul__
    __neg__ __pos__ __abs__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __rand__ __ror__
    __rxor__ __iand__ __ior__ __ixor__ __rdiv__ __idiv__ __lshift__ __rshift__ __ilshift__ __irshift__
    __rlshift__ __rrshift__ fill_diagonal_ heaviside_
    __getitem__ __setitem__ view to type type_as float double half bfloat16 bool int long byte char short cfloat
    cdouble chalf contiguous copy_ fill_ zero_ cpu hardshrink
"""

_TENSOR_ENLARGING = "new_zeros new_ones new_full new_tensor unfold"

_BOUNDED_TORCH = """
    cat concat concatenate stack hstack vstack addcmul addcdiv batch_norm layer_norm group_norm instance_norm rms_norm
    embedding gelu selu celu rsub threshold dropout var_mean std_mean polar complex real imag clamp_min clamp_max
    zeros_like ones_like full_like native_layer_norm fill zero_
"""

_OTHER_TORCH = """
    dstack column_stack row_stack einsum tensordot chain_matmul bilinear conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d conv_tbc convolution alpha_dropout feature_dropout feature_alpha_dropout
    cosine_similarity pairwise_distance cdist baddbmm broadcast_tensors meshgrid block_diag cartesian_prod gradient
    atleast_1d atleast_2d atleast_3d lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    zeros ones full arange linspace logspace eye tensor as_tensor asarray scalar_tensor tril_indices triu_indices
    constant_pad_nd channel_shuffle pixel_shuffle pixel_unshuffle
    binary_cross_entropy_with_logits kl_div poisson_nll_loss hinge_embedding_loss margin_ranking_loss
    triplet_margin_loss cosine_embedding_loss hann_window hamming_window blackman_window bartlett_window kaiser_window
    max_pool1d max_pool1d_with_indices max_pool2d max_pool3d adaptive_max_pool1d adaptive_avg_pool1d
    native_channel_shuffle nuclear_norm norm_except_dim dsmm
"""

_SUBMODULES = {
    "linalg": """norm vector_norm matrix_norm inv inv_ex solve solve_ex solve_triangular det slogdet cholesky
        cholesky_ex qr svd svdvals eigh eigvalsh matmul matrix_power matrix_exp multi_dot cross vecdot diagonal pinv
        matrix_rank cond tensorinv tensorsolve""",
    "fft": """fft ifft rfft irfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn fftshift ifftshift hfft ihfft hfft2
        ihfft2 hfftn ihfftn fftfreq rfftfreq""",
    "special": """erf erfc erfcx erfinv expit exp2 expm1 entr log1p log_softmax softmax logit logsumexp xlogy xlog1py
        i0 i0e i1 i1e sinc digamma psi gammaln polygamma ndtr ndtri log_ndtr gammainc gammaincc zeta round""",
}

_ATEN = ("Aten", "AtenBackward")
"""Prefixes of the operators below the APIs, and of those of the backward."""

_VF = "lstm gru rnn_tanh rnn_relu norm einsum"

_STAND_INS: Sequence[tuple[str, str, Function]] = (
    *(
        (prefix, function.__name__, function)
        for prefix in ("Tensor", "Torch")
        for function in (stand_ins.repeat_interleave, stand_ins.bincount, stand_ins.cov, stand_ins.corrcoef)
    ),
    ("Functional", "one_hot", stand_ins.one_hot),
    ("Functional", "grouped_mm", stand_ins.grouped_mm),
    ("Torch", "_grouped_mm", stand_ins.grouped_mm),
)

_BOUNDED_REFERENCES = """
    fast_gelu npu_fast_gelu npu_gelu npu_silu npu_mish npu_swiglu npu_scaled_masked_softmax npu_rms_norm
    npu_add_rms_norm npu_gemma_rms_norm npu_layer_norm_eval npu_group_norm_silu npu_linear npu_rotary_mul
    npu_confusion_transpose npu_moe_gating_top_k_softmax npu_sort_v2 npu_apply_adam npu_apply_adam_w
"""

_WITH_WEIGHTS = """
    linear embedding scaled_dot_product_attention layer_norm rms_norm group_norm batch_norm instance_norm
    native_layer_norm cross_entropy nll_loss addmm addmv addbmm baddbmm
"""
"""Of the arguments, no more than two decide how large the results are; a bias, a mask or weights do not add to them."""

_LEFT_OUT = {
    "its result is memory that nothing was written to": """
        empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided""",
    "it reads the memory around its argument, which is not in a dump": """
        as_strided as_strided_ as_strided_copy as_strided_scatter set_ resize_ resize_as_""",
    "it may read memory outside of its arguments if a dump asks for it": """
        ctc_loss segment_reduce lu_solve linalg_lu_solve ldl_solve linalg_ldl_solve _unsafe_index
        _unsafe_masked_index _unsafe_masked_index_put_accumulate native_group_norm fractional_max_pool2d
        fractional_max_pool3d max_pool2d_with_indices_backward""",
    "its result is a sparse or quantized tensor": "to_sparse sparse_coo_tensor sparse_csr_tensor quantize_per_tensor",
    "a number among its arguments says how long it computes": """
        mvlgamma special_multigammaln special_chebyshev_polynomial_t special_chebyshev_polynomial_u
        special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h
        special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p""",
}
"""Why functions that programs do call are not in the table, as ends of sentences."""

RANDOM = frozenset(
    {
        "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "rand_like",
        "randn_like", "randint_like", "uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_",
        "cauchy_", "log_normal_", "native_dropout", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_",
        "xavier_uniform_", "xavier_normal_", "orthogonal_",
    }
)  # fmt: skip
"""Functions that always draw random numbers."""


AMBIGUOUS = frozenset(["svd", "linalg_svd", "linalg_eigh", "linalg_eig", "linalg_qr", "qr", "geqrf", "lobpcg"])
"""Functions with several right results: vectors of any sign, or in any order of equal values."""


def find_function(prefix: str, name: str) -> Function | None:
    """Return the function for a name in a dump; ``None`` if it is not called for dumps."""
    return _table().get((prefix, name))


def why_left_out(prefix: str, name: str) -> str | None:
    """Return why a function is left out, as the end of a sentence; ``None`` if there is no reason of its own."""
    return None if find_function(prefix, name) else _reasons().get(name)


@cache
def _reasons() -> dict[str, str]:
    return {name: reason for reason, names in _LEFT_OUT.items() for name in names.split()}


def num_factors(prefix: str, name: str) -> int | None:
    """Return how many of a call's arguments, multiplied, bound the size of its results.

    ``None`` means that sizes of arguments bound nothing, as with ``repeat``, and 0 that the function itself refuses
    results that are too large.
    """
    return _factors().get((prefix, name))


@cache
def _factors() -> dict[tuple[str, str], int]:
    written = [f"{name}_" for name in _ELEMENTWISE.split()]
    shared = [*_ELEMENTWISE.split(), *_OTHERS.split(), *written]
    bounded = {
        "Functional": _BOUNDED_FUNCTIONAL.split(),
        "Tensor": [*shared, *_TENSOR_ONLY.split()],
        "Torch": [*shared, *_BOUNDED_TORCH.split()],
        "NPU": _BOUNDED_REFERENCES.split(),
        **{prefix: [*shared, *_replay_aten.PLAIN.split(), "_softmax", "_log_softmax"] for prefix in _ATEN},
    }
    with_weights = frozenset(_WITH_WEIGHTS.split())
    return (
        {(prefix, name): 2 if name in with_weights else 3 for prefix, names in bounded.items() for name in names}
        | {("NPU", name): 0 for _, name in REFERENCES if "fusion_attention" in name}
        | {("Torch", name): 1 for name in _JOINING.split()}
    )


_JOINING = "cat concat concatenate stack hstack vstack dstack column_stack"
"""Their results are as large as all arguments together; PyTorch's meta run of them imports its compiler."""


@cache
def _table() -> dict[tuple[str, str], Function]:
    return dict(_rows())


def _rows() -> Iterator[tuple[tuple[str, str], Function]]:
    written = [f"{name}_" for name in _ELEMENTWISE.split()]
    shared = [*_ELEMENTWISE.split(), *_OTHERS.split(), *_ENLARGING.split(), *written]
    yield from _members("Functional", functional, [*_BOUNDED_FUNCTIONAL.split(), *_OTHER_FUNCTIONAL.split()])
    yield from _members("Tensor", torch.Tensor, [*shared, *_TENSOR_ONLY.split(), *_TENSOR_ENLARGING.split()])
    yield from _members("Torch", torch, [*shared, *_BOUNDED_TORCH.split(), *_OTHER_TORCH.split()])
    yield from _members("VF", torch._VF, _VF.split())
    for stem, names in _SUBMODULES.items():
        for (_, name), function in _members("", getattr(torch, stem), names.split()):
            yield ("Torch", f"{stem}_{name}"), function
    aten = [*shared, *_replay_aten.PLAIN.split(), *_replay_aten.ENLARGING.split()]
    for prefix in _ATEN:
        yield from _members(prefix, torch.ops.aten, aten)
        yield from (((prefix, name), function) for name, function in _replay_aten.FORMULAS.items())
    yield from (((prefix, name), function) for prefix, name, function in _STAND_INS)
    yield from REFERENCES.items()
    yield from ((("Torch", name), function) for name, function in OPTIMIZER_STEPS.items())
    singles: dict[str, Function] = {name: function for (_, name), function in _members("", torch, _OF_LISTS.split())}
    singles |= {"norm": torch.linalg.vector_norm, "addcmul": stand_ins.addcmul, "addcdiv": stand_ins.addcdiv}
    for name, function in singles.items():
        for each in (f"_foreach_{name}", f"_foreach_{name}_"):
            yield ("Torch", each), stand_ins.of_lists(function)


def _members(prefix: str, namespace: Any, names: Sequence[str]) -> Iterator[tuple[tuple[str, str], Function]]:
    for name in names:
        function = getattr(namespace, name, None)  # not every release has all of them
        if callable(function):
            yield (prefix, name), function


_OF_LISTS = """
    abs add addcdiv addcmul ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma log log10
    log1p log2 maximum minimum mul neg norm pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc
"""
"""Of which there are variants for lists of tensors, ``torch._foreach_add`` and so on."""

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
