"""Arguments for MindSpore's numerical functions, by name, which PyTorch's functions of the same name take too.

Sizes are small; values are exact in float32, so that only the results distinguish a kernel that
computes in float32 from one in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray
Call = tuple[tuple[Any, ...], dict[str, Any]]


def numbers(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """Return uniform numbers with 24 significant bits, in float64."""
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32).astype(np.float64)


def integers(*shape: int, high: int = 3, seed: int = 0, dtype: type = np.int64) -> Array:
    """Return integers below ``high``."""
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


def bools(*shape: int, seed: int = 0) -> Array:
    """Return truth values."""
    return np.random.default_rng(seed).random(shape) < 0.5


def call(*args: Any, **kwargs: Any) -> Call:
    """Return the arguments of a call."""
    return args, kwargs


X, Y, Z = numbers(3, 4), numbers(3, 4, seed=1), numbers(3, 4, seed=2)
POSITIVE, UNIT, INSIDE = (
    numbers(3, 4, low=0.2, high=3),
    numbers(3, 4, low=0.05, high=0.95),
    numbers(3, 4, low=-0.9, high=0.9),
)
IMAGE, SQUARE, BATCHED = numbers(2, 3, 6, 6), numbers(3, 3), numbers(2, 3, 4)
DEFINITE = SQUARE @ SQUARE.T + 3 * np.eye(3)
DEFINITE = DEFINITE.astype(np.float32).astype(np.float64)

SAMPLES: dict[str, list[Call]] = {}


def _add(names: str, *calls: Call) -> None:
    for name in names.split():
        SAMPLES[name] = list(calls)


_add(
    "abs absolute ceil cos cosh deg2rad digamma erf erfc exp exp2 expm1 fix floor frac i0 neg negative rad2deg "
    "round sign sin "
    "sinc sinh square tan tanh trunc sigmoid relu relu6 elu selu celu leaky_relu hardshrink softshrink "
    "softsign softplus "
    "hardsigmoid silu mish hardswish hardtanh tanhshrink logsigmoid gelu fast_gelu positive sgn heaviside_ "
    "isfinite isinf isnan "
    "isneginf isposinf isreal signbit nan_to_num arctan asinh arcsinh atan logical_not bessel_i0 bessel_i0e bessel_i1 "
    "bessel_i1e bessel_j0 bessel_j1 conj real angle ravel flatten fliplr flipud t adjoint clone copy contiguous detach "
    "zeros_like ones_like double float nonzero argwhere sum mean prod any all var std argmax argmin max min amax amin "
    "median trace count_nonzero sort argsort diag triu tril msort npu_gelu nansum nanmean nanmedian ptp unbind unstack "
    "var_mean std_mean norm aminmax std_ diff unique diagonal view_as_real swiglu_ cov hsplit_ positive "
    "__abs__ __neg__ __pos__ "
    "atleast_1d atleast_2d atleast_3d squeeze diagflat diag_embed soft_shrink vander_ int long bool",
    call(X),
)  # fmt: skip
_add("acos arccos asin arcsin atanh arctanh erfinv", call(INSIDE))
_add("acosh arccosh", call(1 + POSITIVE))
_add(
    "log log10 log1p log2 rsqrt sqrt reciprocal lgamma bessel_k0 bessel_k0e bessel_k1 bessel_k1e bessel_y0 "
    "bessel_y1 inv",
    call(POSITIVE),
)
_add("logit", call(UNIT), call(UNIT, 0.1))
_add(
    "add sub subtract mul multiply div divide true_divide atan2 arctan2 floor_div floor_divide floor_mod fmod "
    "remainder hypot "
    "copysign eq equal ne not_equal lt less le less_equal gt greater ge greater_equal maximum minimum fmax "
    "fmin logaddexp "
    "logaddexp2 realdiv truncate_div truncate_mod nextafter isclose allclose dist heaviside __add__ __radd__ "
    "__sub__ __rsub__ "
    "__mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __mod__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __iadd__ "
    "__isub__ __imul__ __itruediv__ xdivy reshape_as view_as expand_as type_as tensor_muls cosine_similarity "
    "l1_loss mse_loss "
    "smooth_l1_loss huber_loss sub_ kron_",
    call(X, Y),
)  # fmt: skip
_add("add sub subtract", call(X, Y), call(X, 0.3), call(X, Y, alpha=0.3))
_add("sub", call(X, Y), call(X, 0.3))
_add("pow __pow__", call(POSITIVE, Y), call(POSITIVE, 2.5), call(X, 3), call(X, 2))
_add("float_power", call(POSITIVE, Y), call(POSITIVE, 2.5))
_add("__rpow__", call(X, POSITIVE))
_add("xlogy special_xlogy", call(X, POSITIVE))
_add("ldexp", call(X, integers(3, 4)))
_add("igamma igammac", call(POSITIVE, numbers(3, 4, seed=4, low=0.3, high=4)))
_add("zeta", call(1.5 + POSITIVE, POSITIVE))
_add("polygamma", call(1, POSITIVE))
_add("mvlgamma", call(3 + POSITIVE, 2))
_add("lerp", call(X, Y, UNIT), call(X, Y, 0.3))
_add("addcdiv", call(X, Y, POSITIVE))
_add("addcmul", call(X, Y, Z), call(X, Y, Z, value=0.3))
_add("clamp clip", call(X, -0.5, 0.7))
_add("clip_by_value", call(X, -0.5, 0.7))
_add("clamp_min_ clamp_max_", call(X, 0.1))
_add("logical_and logical_or logical_xor", call(bools(3, 4), bools(3, 4, seed=1)))
_add(
    "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__",
    call(integers(3, 4, high=9), integers(3, 4, high=9, seed=1)),
)
_add("bitwise_left_shift bitwise_right_shift", call(integers(3, 4, high=9), integers(3, 4, high=3, seed=1)))
_add("bitwise_not invert __invert__", call(integers(3, 4, high=9)))
_add("gcd lcm", call(integers(3, 4, high=9), integers(3, 4, high=9, seed=1) + 1))
_add("masked_fill", call(X, bools(3, 4), 0.7), call(X, bools(3, 4), np.float64(0.5)))
_add("masked_select", call(X, bools(3, 4)))
_add("masked_scatter", call(X, bools(3, 4), numbers(12, seed=3)))
_add("where", call(bools(3, 4), X, Y))
_add("select_v2_", call(bools(3, 4), X, Y))
_add("cumprod cumsum logcumsumexp cummax cummin", call(X, 0), call(X, 1))
_add("softmax log_softmax softmin logsumexp", call(X, 1), call(X, 0))
_add("normalize", call(X), call(X, 2.0, 1))
_add("prelu", call(X, np.array([0.25])))
_add("glu", call(X), call(X, 0))
_add("threshold", call(X, 0.1, 20.0))
_add("matmul mm __matmul__", call(X, numbers(4, 5, seed=3)))
_add("matmul", call(BATCHED, numbers(2, 4, 5, seed=3)), call(numbers(4), numbers(4, 5, seed=3)))
_add("bmm batch_dot_", call(BATCHED, numbers(2, 4, 5, seed=3)))
_add("addmm", call(numbers(3, 5, seed=5), X, numbers(4, 5, seed=3)))
_add("addmv", call(numbers(3, seed=5), X, numbers(4, seed=3)))
_add("addbmm", call(numbers(3, 5, seed=5), BATCHED, numbers(2, 4, 5, seed=3)))
_add("baddbmm", call(numbers(2, 3, 5, seed=5), BATCHED, numbers(2, 4, 5, seed=3)))
_add("addr", call(X, numbers(3, seed=5), numbers(4, seed=3)))
_add("mv", call(X, numbers(4, seed=3)))
_add("dot inner vdot", call(numbers(4), numbers(4, seed=3)))
_add("vecdot", call(X, Y))
_add("outer ger", call(numbers(3), numbers(4, seed=3)))
_add("einsum", call("ij,jk->ik", X, numbers(4, 5, seed=3)), call("bij,bjk->bik", BATCHED, numbers(2, 4, 5, seed=3)))
_add("kron", call(X, numbers(2, 2, seed=3)))
_add("linear dense", call(X, numbers(5, 4, seed=3)), call(X, numbers(5, 4, seed=3), numbers(5)))
_add("bidense_ bilinear_", call(X, numbers(3, 5), numbers(6, 4, 5), numbers(6)))
_add("cross", call(numbers(2, 3), numbers(2, 3, seed=1)))
_add("cdist", call(X, numbers(5, 4, seed=1)))
_add("pdist", call(X))
_add(
    "det slogdet logdet cholesky inverse matrix_exp matrix_determinant log_matrix_determinant linalg_inv pinv",
    call(DEFINITE),
)
_add("qr", call(X.T.copy()))
_add("linalg_qr", call(X.T.copy()))
_add("matrix_power", call(SQUARE, 3))
_add("linalg_matrix_norm", call(X))
_add("linalg_vector_norm", call(X))
_add("triangular_solve", call(X, np.triu(DEFINITE)))
_add("matrix_solve", call(DEFINITE, X))
_add("cholesky_inverse", call(DEFINITE))
_add("cholesky_solve", call(X, np.tril(DEFINITE)))
_add("svd", call(X))
_add("sum mean", call(X), call(X, 1))
_add("amax amin", call(X, 1))
_add("prod", call(X), call(X, 1))
_add("reduce_sum reduce_mean reduce_max reduce_min", call(X, 1))
_add("std var", call(X), call(BATCHED, 1))
_add("var_mean std_mean", call(X), call(BATCHED, 1))
_add("norm", call(X), call(X, 2, 1))
_add("topk", call(X, 2))
_add("kthvalue", call(X, 2))
_add("histc", call(X, 4, -1.0, 1.0))
_add("bincount", call(integers(6)))
_add("searchsorted", call(np.sort(X, -1), Y))
_add("bucketize", call(X, [-1.0, 0.0, 1.0]))
_add("renorm", call(X, 2, 0, 1.0))
_add("quantile", call(X, 0.3), call(X, UNIT[0], 1))
_add("nanquantile", call(X, 0.3))
_add("trapz", call(X))
_add("reshape view", call(X, (4, 3)), call(X, (2, -1)))
_add("transpose", call(X, 0, 1))
_add("permute", call(BATCHED, (2, 0, 1)))
_add("movedim moveaxis swapaxes swapdims", call(BATCHED, 0, 2))
_add("unsqueeze expand_dims", call(X, 1))
_add("unflatten", call(X, 1, (2, 2)))
_add("narrow", call(X, 1, 1, 2))
_add("select select_ext", call(X, 1, 2))
_add("chunk", call(X, 2, 1))
_add("split", call(X, 2, 1))
_add("tensor_split", call(X, 2, 1))
_add("hsplit", call(X, 2))
_add("vsplit", call(numbers(4, 3), 2))
_add("dsplit", call(BATCHED, 2))
_add("roll", call(X, 1, 0))
_add("flip", call(X, (0,)))
_add("rot90", call(X, 1, (0, 1)))
_add("cat concat concatenate", call([X, Y], 1))
_add("stack", call([X, Y], 1))
_add("hstack vstack dstack column_stack row_stack", call([X, Y]))
_add("block_diag", call(X, Y))
_add("meshgrid", call(numbers(3), numbers(2)))
_add("gather", call(X, 1, integers(3, 2)))
_add("gather_elements gather_d", call(X, 1, integers(3, 2)))
_add("take_along_dim", call(X, integers(3, 2), 1))
_add("take", call(X, integers(2, 2)))
_add("index_select", call(X, 0, integers(5)))
_add("index_add", call(X, 0, np.array([0, 2], np.int32), numbers(2, 4, seed=3)))
_add("index_fill", call(X, 0, np.array([0, 2], np.int32), 0.5))
_add("index_copy_ index_add_", call(X, 0, np.array([0, 2]), numbers(2, 4, seed=3)))
_add("scatter", call(X, 1, integers(3, 1), numbers(3, 1, seed=3)))
_add("scatter_add", call(X, 1, integers(3, 2), numbers(3, 2, seed=3)))
_add("repeat tile", call(X, (2, 1)))
_add("repeat_interleave", call(X, 2, 0))
_add("broadcast_to expand", call(numbers(1, 4), (3, 4)))
_add("pad", call(IMAGE, (1, 1, 2, 0)), call(IMAGE, (1, 1, 2, 1), "reflect"), call(IMAGE, (1, 1), "constant", 0.3))
_add(
    "interpolate",
    call(IMAGE, scale_factor=2.0),
    call(IMAGE, (9, 9), None, "bilinear", False),
    call(IMAGE, (9, 9), None, "bilinear", True),
)
_add("unfold", call(IMAGE, 2))
_add("fold", call(numbers(2, 12, 9), (4, 4), (2, 2)))
_add("pixel_shuffle", call(numbers(1, 4, 3, 3), 2))
_add("pixel_unshuffle", call(numbers(1, 1, 4, 4), 2))
_add("channel_shuffle", call(numbers(1, 4, 3, 3), 2))
_add("layer_norm", call(X, (4,)), call(X, (4,), numbers(4), numbers(4, seed=1), 1e-5))
_add("rms_norm", call(X, (4,)))
_add("group_norm", call(numbers(2, 4, 3, 3), 2), call(numbers(2, 4, 3, 3), 2, numbers(4), numbers(4, seed=1)))
_add(
    "batch_norm",
    call(IMAGE, numbers(3), numbers(3, low=0.5), numbers(3, seed=1), numbers(3, seed=2), True),
    call(IMAGE, numbers(3), numbers(3, low=0.5), numbers(3, seed=1), numbers(3, seed=2), False),
)
_add("instance_norm local_response_norm_", call(IMAGE))
_add("conv1d", call(numbers(2, 3, 7), numbers(4, 3, 3), numbers(4)))
_add(
    "conv2d",
    call(IMAGE, numbers(4, 3, 3, 3)),
    call(IMAGE, numbers(4, 3, 3, 3), numbers(4), 2, 1),
    call(IMAGE, numbers(3, 1, 3, 3), None, 1, 0, 1, 3),
)
_add("conv3d", call(numbers(1, 2, 4, 4, 4), numbers(3, 2, 2, 2, 2)))
_add("conv_transpose2d", call(IMAGE, numbers(3, 4, 3, 3)), call(IMAGE, numbers(3, 4, 3, 3), numbers(4), 2, 1))
_add("embedding", call(integers(2, 3, high=5), numbers(5, 4)))
_add("one_hot", call(integers(4), 3))
_add("avg_pool1d max_pool1d", call(numbers(2, 3, 6), 2))
_add("avg_pool2d max_pool2d", call(IMAGE, 2), call(IMAGE, 3, 2, 1))
_add("avg_pool3d max_pool3d", call(numbers(1, 2, 4, 4, 4), 2))
_add("adaptive_avg_pool1d adaptive_max_pool1d", call(numbers(2, 3, 6), 2))
_add("adaptive_avg_pool2d adaptive_max_pool2d", call(IMAGE, (2, 2)), call(IMAGE, (4, 4)))
_add("adaptive_avg_pool3d", call(numbers(1, 2, 4, 4, 4), (2, 2, 2)))
_add("lp_pool1d", call(numbers(2, 3, 6), 2.0, 2))
_add("lp_pool2d", call(np.abs(IMAGE), 2.0, 2))
_add("cross_entropy", call(X, integers(3)), call(X, UNIT), call(X, integers(3), POSITIVE[0]))
_add("nll_loss", call(X, integers(3)), call(X, integers(3), POSITIVE[0]))
_add("binary_cross_entropy", call(UNIT, bools(3, 4).astype(float)), call(UNIT, UNIT[::-1].copy(), POSITIVE))
_add("binary_cross_entropy_with_logits", call(X, UNIT), call(X, UNIT, POSITIVE, POSITIVE))
_add("kl_div", call(np.log(UNIT).astype(np.float32).astype(float), UNIT[::-1].copy(), reduction="sum"))
_add("l1_loss mse_loss", call(X, Y), call(X, Y, reduction="sum"))
_add("smooth_l1_loss huber_loss", call(X, Y))
_add("gaussian_nll_loss", call(X, Y, POSITIVE))
_add("hinge_embedding_loss", call(X, np.sign(Y)))
_add("margin_ranking_loss cosine_embedding_loss_", call(X[0], Y[0], np.sign(Z[0])))
_add("cosine_embedding_loss", call(X, Y, np.sign(Z[:, 0])))
_add("soft_margin_loss", call(X, np.sign(Y)))
_add("triplet_margin_loss", call(X, Y, Z))
_add("multilabel_soft_margin_loss", call(X, bools(3, 4).astype(float)))
_add("scaled_dot_product_attention", call(*(numbers(2, 2, 5, 4, seed=seed) for seed in range(3))))
_add(
    "grid_sample",
    call(IMAGE, numbers(2, 4, 4, 2, low=-0.9, high=0.9)),
    call(IMAGE, numbers(2, 4, 4, 2), "bilinear", "border", True),
)
_add("affine_grid", call(numbers(2, 2, 3), (2, 3, 4, 4)))
_add("gelu", call(X), call(X, approximate="tanh"))
_add("cumsum", call(X, 0))
_add("elu celu", call(X), call(X, 0.7))
_add("leaky_relu", call(X), call(X, 0.2))
_add("glu", call(X))
_add("softplus", call(X), call(X, 2.0, 1.0))
_add("hardtanh", call(X), call(X, -0.5, 0.5))
_add("hardshrink softshrink", call(X), call(X, 0.3))
_add("swiglu", call(X))
_add("isfinite isnan isinf", call(np.array([1.0, np.inf, np.nan])))
_add("__getitem__", call(X, 1))
_add("polar", call(POSITIVE, X))
_add("count_nonzero", call(integers(3, 4)))
_add("index_put", call(X, (integers(2), integers(2)), numbers(2)))
_add("diagonal", call(X), call(X, 1))
_add("triu tril", call(X), call(X, 1))
_add("trace", call(SQUARE))
_add("mirror_pad_", call(X))
_add("nan_to_num", call(np.array([1.0, np.nan, np.inf, -np.inf]), 0.5, 2.0, -2.0), call(np.array([1.0, np.nan])))
_add("unfold", call(IMAGE, 2))
_add("full_like", call(X, 0.3))
_add("cast astype to type", call(X, "float32"))
_add("nansum", call(X), call(X, 1))
_add("logsumexp", call(X, 1))
_add("sgn", call(X))
_add("rrelu", call(X, 0.2, 0.2))


OF_OPS: dict[str, list[Call]] = {
    "gather": [call(X, integers(3, 2), 1)],
    "index_add": [call(X, np.array([0, 2], np.int32), numbers(2, 4, seed=3), 0)],
    "conv2d": [
        call(IMAGE, numbers(4, 3, 3, 3)),
        call(IMAGE, numbers(4, 3, 3, 3), numbers(4), 2, "pad", 1),
        call(IMAGE, numbers(3, 1, 3, 3), None, 1, "same", 0, 1, 3),
    ],
    "rms_norm": [call(X, numbers(4))],
    "add_rms_norm": [call(X, Y, numbers(4))],
    "select": [call(bools(3, 4), X, Y)],
    "transpose": [call(BATCHED, (2, 0, 1))],
    "tensor_scatter_add": [call(X, integers(5, 1), numbers(5, 4, seed=3))],
    "gather_nd": [call(X, integers(5, 2))],
    "glu": [call(X)],
    "expand": [call(numbers(1, 4), np.array([3, 4]))],
}
"""Of functions of ``ops`` whose parameters are others than those of ``mint``, or that only it has."""


def samples(name: str, prefix: str = "") -> Iterator[Call]:
    """Yield arguments for a function by its name without prefix and suffixes; nothing if there are none."""
    if prefix == "Functional" and name in OF_OPS:
        yield from OF_OPS[name]
        return
    stem = name.removeprefix("special_")
    for each in (stem, stem.removesuffix("_ext"), stem.removesuffix("_") if not stem.endswith("__") else stem):
        if each in SAMPLES:
            yield from SAMPLES[each]
            return
    stem = stem.removeprefix("linalg_")
    yield from SAMPLES.get(stem, ())
