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

_WITHOUT_FORMULA = """
    batch_dot tensor_dot median diff cross
    repeat select slice strided_slice diag index_add masked_scatter scatter_add unfold zero_ fill_
    cast astype to type type_as float half double bfloat16 int long bool
    batch_norm instance_norm rms_norm local_response_norm lrn rrelu
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d one_hot upsample grid_sample
    avg_pool1d avg_pool2d avg_pool3d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    smooth_l1_loss triplet_margin_loss
"""
"""Functions without a formula in one or all of the namespaces; those with one need not be listed."""

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
    named = _WITHOUT_FORMULA.split()
    # Releases and aclnn have additional variants of a function under another name.
    allowed = {*named, *(f"{name}_ext" for name in named)}
    return {
        (place.prefix, place.name): original_of(getattr(place.owner, place.attribute))
        for place in find_places(RiskLevel.ALL)
        if place.name in allowed or has_formula(place.prefix, place.name)
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
