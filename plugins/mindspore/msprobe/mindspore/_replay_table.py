"""The functions that may be called for a dump: numerical ones, which use no file, network or process.

A dump may be untrusted, so its names are never looked up in MindSpore, only in this table. The table also excludes
functions that create results from scalars alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msprobe.mindspore._apis import find_places
from msprobe.mindspore._replay_formula import has_formula
from msprobe_core.interception import original_of
from msprobe_core.plugin import LinearKind, RiskLevel

Function = Callable[..., Any]

_ELEMENTWISE = """
    abs absolute acos acosh add addcdiv addcmul arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan
    atan2 atanh ceil clamp clip clip_by_value copysign cos cosh cumprod cumsum deg2rad digamma div divide eq equal erf
    erfc erfinv exp exp2 expm1 fix float_power floor floor_div floor_divide floor_mod fmod frac ge greater
    greater_equal gt hypot i0 ldexp le lerp less less_equal lgamma log log10 log1p log2 logical_and logical_not
    logical_or logical_xor logit lt masked_fill mul multiply nan_to_num ne neg negative not_equal pow rad2deg
    reciprocal realdiv remainder round rsqrt sign sin sinc sinh sqrt square sub subtract tan tanh true_divide trunc
    xdivy xlogy sigmoid relu
"""

_PRODUCTS_AND_SUMS = """
    matmul mm bmm batch_dot addmm addmv addbmm baddbmm addr mv dot tensor_dot einsum inner outer dense linear
    sum mean prod var std var_mean std_mean norm amax amin max min maximum minimum fmax fmin argmax argmin all any
    reduce_sum reduce_mean reduce_max reduce_min median logsumexp cummax cummin logcumsumexp logaddexp logaddexp2
    count_nonzero diff trace cross dist cosine_similarity cdist
"""

_MOVING = """
    reshape reshape_as view view_as transpose permute t squeeze unsqueeze expand_dims flatten unflatten ravel narrow
    select slice chunk split tensor_split unbind unstack movedim swapaxes swapdims strided_slice roll flip fliplr
    flipud rot90 cat concat concatenate stack hstack vstack dstack tril triu diag diagonal gather gather_elements
    gather_nd gather_d index_select index_add index_fill masked_select masked_scatter scatter scatter_add
    tensor_scatter_elements tensor_scatter_add take take_along_dim where select_ext sort topk argsort unfold
    broadcast_to expand expand_as repeat tile repeat_interleave pad interpolate upsample
    cast astype to type type_as float half double bfloat16 int long bool clone copy contiguous detach
    zeros_like ones_like full_like zero_ fill_ copy_
"""

_LAYERS = """
    layer_norm group_norm batch_norm instance_norm rms_norm normalize local_response_norm lrn
    softmax log_softmax softmin relu6 elu selu celu leaky_relu prelu rrelu glu gelu logsigmoid hardshrink softshrink
    softsign softplus hardsigmoid silu mish hardswish hardtanh threshold tanhshrink fast_gelu
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bias_add embedding one_hot
    avg_pool1d avg_pool2d avg_pool3d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div mse_loss l1_loss smooth_l1_loss
    huber_loss cosine_embedding_loss margin_ranking_loss soft_margin_loss triplet_margin_loss
    scaled_dot_product_attention grid_sample
"""

_OPERATORS = """
    __abs__ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__
    __itruediv__ __floordiv__ __rfloordiv__ __ifloordiv__ __mod__ __rmod__ __imod__ __pow__ __rpow__ __matmul__
    __rmatmul__ __neg__ __pos__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__
    __getitem__ __setitem__
"""

SIZED = frozenset(["broadcast_to", "expand", "repeat", "tile", "repeat_interleave", "pad", "interpolate", "upsample",
                   "one_hot", "unfold"])  # fmt: skip
"""Functions whose results can be much larger than their inputs."""

INDEXED = frozenset(
    {
        "embedding", "gather", "gather_elements", "gather_d", "gather_nd", "index_select", "index_add", "index_fill",
        "take", "take_along_dim", "scatter", "scatter_add", "tensor_scatter_add", "tensor_scatter_elements",
        "masked_scatter", "masked_select", "masked_fill", "nll_loss", "cross_entropy", "unsorted_segment_sum", "narrow",
        "repeat_interleave", "select", "select_ext", "slice", "strided_slice", "topk", "top_k", "kthvalue",
        "grid_sample", "__getitem__", "__setitem__", "unfold", "fold", "one_hot", "roll", "tensor_split",
    }
)  # fmt: skip
"""Functions whose arguments are, or contain, places in others. Not all of MindSpore's kernels on the CPU check
them, so these are only replayed by their formulas, which do."""

CHECKED = frozenset({"cross_entropy", "nll_loss"})
"""Those of them whose kernels may be called after the formula has checked the indices: they are less exact than it."""

DRAWING = frozenset({"rrelu", "scaled_dot_product_attention", "flash_attention_score"})
"""Functions that draw random numbers for some arguments."""

CASTS = frozenset(
    {"cast", "astype", "to", "type", "type_as", "float", "half", "double", "bfloat16", "int", "long", "bool"}
)
"""Functions whose kernels are replayed in float64 too, as they compute nothing."""

RANDOM = frozenset(
    {
        "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "uniform", "gamma", "laplace",
        "poisson", "rand_like", "randn_like", "randint_like", "random_categorical", "random_poisson",
        "standard_normal", "standard_laplace", "uniform_", "normal_", "random_", "bernoulli_", "exponential_",
        "dropout", "dropout1d", "dropout2d", "dropout3d", "dropout_ext", "alpha_dropout", "feature_alpha_dropout",
        "shuffle", "choice_with_mask", "truncated_normal",
    }
)  # fmt: skip
"""Functions that always draw random numbers."""


def find_function(prefix: str, name: str) -> Function | None:
    """Return the function for a name in a dump; ``None`` if it is not called for dumps."""
    return _table().get((prefix, name))


@cache
def _table() -> dict[tuple[str, str], Function]:
    named = f"{_ELEMENTWISE} {_PRODUCTS_AND_SUMS} {_MOVING} {_LAYERS} {_OPERATORS}".split()
    written = [f"{name}_" for name in _ELEMENTWISE.split()]
    # Releases and aclnn have additional variants of a function under another name.
    allowed = {*named, *written, *(f"{name}_ext" for name in named)}
    return {
        (place.prefix, place.name): original_of(getattr(place.owner, place.attribute))
        for place in find_places(RiskLevel.ALL)
        if place.name.removeprefix("linalg_").removeprefix("special_") in allowed
        or has_formula(place.prefix, place.name)
    }


_LINEAR = """
    linear dense conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bias_add embedding
    matmul mm bmm batch_dot mv dot inner outer tensor_dot einsum addmm addmv addbmm baddbmm addr
    sum reduce_sum cumsum trace index_add scatter_add tensor_scatter_add
    index_select gather take take_along_dim expand expand_as broadcast_to repeat tile __getitem__
"""
"""Functions that are linear in each of their floating-point tensors, also those whose gradients alone are sums."""


def linear_in(name: str) -> LinearKind | None:
    """See `msprobe_core.plugin.LinearFramework`."""
    stem = name.removesuffix("_ext")
    if stem in ("mean", "reduce_mean"):
        return LinearKind.MEAN
    return LinearKind.SUM if stem in _LINEAR.split() else None
