"""Formulas that stand for MindSpore's kernels in float64: right to the last digits, and those of its functions."""

import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from mindspore_samples import samples
from msprobe.mindspore._framework import MindSporeFramework
from msprobe.mindspore._replay_forms import FORMS, find_form
from msprobe.mindspore._replay_table import _table

from msprobe_core import names
from msprobe_core.errors import ReplayError
from msprobe_core.model import Argument, ReplayCall, ReplayTensor

torch = pytest.importorskip("torch")

ms.runtime.launch_blocking()

ROUNDED_THERE = {"celu": 1e-8, "hardsigmoid": 1e-7, "digamma": 1e-10, "lgamma": 1e-13, "gelu": 1e-12}
"""PyTorch's own errors in float64: constants in float32 (celu, hardsigmoid), and series that end early."""

OTHER_THERE = {
    ("Functional", name)
    for name in (
        "std", "var", "std_mean", "var_mean", "leaky_relu", "flatten", "max", "min", "smooth_l1_loss", "avg_pool1d",
        "avg_pool2d", "avg_pool3d", "equal", "conv2d", "gather", "index_add", "rms_norm", "select", "transpose", "take",
    )
} | {("Tensor", name) for name in ("std", "var", "std_mean", "var_mean", "equal")}  # fmt: skip
"""Functions of ``ops`` that have other defaults or parameters than PyTorch's of the name; held against the kernels."""


def argument(value):
    """Return a sample's argument as a dump has it."""
    if isinstance(value, np.ndarray | np.float64):
        array = np.asarray(value)
        return ReplayTensor(values=array, dtype=str(array.dtype), takes_gradient=array.dtype.kind == "f")
    if isinstance(value, list | tuple):
        return [argument(each) for each in value]
    return None if value is None else Argument(type(value).__name__, value)


def call_of(prefix, name, args, kwargs, phase="forward", **settings):
    kinds = {key: argument(value) for key, value in kwargs.items()}
    return ReplayCall(
        site=names.parse_entry(f"{prefix}.{name}.0.{phase}"), args=[argument(each) for each in args], kwargs=kinds,
        **settings,
    )  # fmt: skip


def mapped(value, make):
    if isinstance(value, np.ndarray | np.float64):
        return make(np.asarray(value))
    return type(value)(mapped(each, make) for each in value) if isinstance(value, list | tuple) else value


def tensors_in(value, kind):
    if isinstance(value, kind):
        return [value]
    return [found for each in value for found in tensors_in(each, kind)] if isinstance(value, tuple | list) else []


def function_of_torch(prefix, name):
    places = {"Tensor": (torch.Tensor, torch, torch.nn.functional)}.get(prefix, (torch.nn.functional, torch))
    if name.startswith("linalg_"):
        places, name = (torch.linalg,), name.removeprefix("linalg_")
    return next((getattr(place, name) for place in places if hasattr(place, name)), None)


def error_of(found, expected):
    """Return the largest error relative to the largest element; infinite for other shapes."""
    if found.shape != expected.shape:
        return math.inf
    with np.errstate(all="ignore"):
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        error = np.max(np.where(same, 0.0, np.abs(np.subtract(found, expected, dtype=np.float64))), initial=0.0)
    return float(error) / (np.max(np.abs(np.nan_to_num(expected.astype(np.float64))), initial=0.0) or 1.0)


def of_torch(function, args, kwargs):
    """Return PyTorch's results, and gradients of the inputs for the gradients of results; ``None`` if it refuses."""
    leaves = {}

    def make(array):
        return torch.from_numpy(array.copy())

    def track(value, path):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            leaves[path] = value.requires_grad_()
            return value.clone()
        if isinstance(value, list | tuple):
            return type(value)(track(each, f"{path}.{i}") for i, each in enumerate(value))
        return value

    try:
        given = [track(mapped(each, make), str(i)) for i, each in enumerate(args)]
        output = function(*given, **kwargs)
        outputs = tensors_in(tuple(output) if isinstance(output, tuple) else output, torch.Tensor)
    except (RuntimeError, TypeError, IndexError):
        return None
    gradients = {
        str(i): np.random.default_rng(i).standard_normal(tuple(each.shape))
        for i, each in enumerate(outputs)
        if each.requires_grad and each.is_floating_point()
    }
    found = {}
    if gradients:
        ends = [outputs[int(i)] for i in gradients]
        try:
            each = torch.autograd.grad(
                ends, list(leaves.values()), [make(g) for g in gradients.values()], allow_unused=True
            )
        except RuntimeError:
            gradients = {}
        else:
            zeros = (torch.zeros_like(leaf) for leaf in leaves.values())
            found = dict(zip(leaves, (z if g is None else g for g, z in zip(each, zeros, strict=True)), strict=True))
    return outputs, gradients, {path: value.numpy(force=True) for path, value in found.items()}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_formulas_and_their_gradients_are_those_of_pytorch_in_float64():
    framework = MindSporeFramework()
    counted = {"forward": 0, "backward": 0}
    wrong = []
    for prefix, name in sorted(FORMS.keys() & _table().keys()):
        function = function_of_torch(prefix, name)
        if function is None or name.startswith("__") or (prefix, name) in OTHER_THERE:
            continue
        limit = ROUNDED_THERE.get(name, 1e-13)
        for args, kwargs in samples(name, prefix):
            theirs = of_torch(function, args, kwargs)
            if theirs is None:
                continue
            outputs, gradients, of_inputs = theirs
            try:
                ours = framework.replay(call_of(prefix, name, args, kwargs, is_widened=True)).values
            except ReplayError:
                continue
            counted["forward"] += 1
            for found, expected in zip(ours.values(), outputs, strict=False):
                assert found.dtype == "float64" or found.values.dtype.kind in "biu", (prefix, name)
                if (error := error_of(found.values, expected.numpy(force=True))) > limit:
                    wrong.append((prefix, name, error))
            if gradients:
                given = {path: ReplayTensor(values=value, dtype="float64") for path, value in gradients.items()}
                call = call_of(prefix, name, args, kwargs, "backward", is_widened=True, gradients=given)
                back = framework.replay(call).values
                counted["backward"] += 1
                assert set(back) == set(of_inputs), (prefix, name)
                wrong += [
                    (prefix, name, path, error)
                    for path, expected in of_inputs.items()
                    if (error := error_of(back[path].values, expected)) > 10 * limit
                ]
    print(counted)
    assert wrong == []
    assert counted["forward"] > 600
    assert counted["backward"] > 400


EXACT_TO = 5e-6
"""MindSpore's kernels in float32 on the CPU are off by up to 4e-6, as those of digamma and softplus."""


def test_formulas_are_those_of_the_kernels_on_this_cpu():
    compared, wrong = 0, []
    framework = MindSporeFramework()
    for (prefix, name), function in sorted(_table().items()):
        if find_form(prefix, name) is None:
            continue
        for args, kwargs in samples(name, prefix):
            try:
                output = function(*(mapped(each, tensor) for each in args), **kwargs)
                output = args[0] if output is None else output
                theirs = [each.asnumpy() for each in tensors_in(output, Tensor)]
            except Exception:  # noqa: BLE001  # no kernel, or other parameters
                continue
            try:
                ours = framework.replay(call_of(prefix, name, args, kwargs, is_widened=True)).values
            except ReplayError:
                continue
            compared += 1
            errors = [error_of(found.values, each) for found, each in zip(ours.values(), theirs, strict=False)]
            if len(theirs) != len(ours) or any(error > EXACT_TO for error in errors):
                wrong.append((prefix, name, len(ours), len(theirs), errors))
    print(compared)
    assert wrong == []
    assert compared > 600


def tensor(array):
    return Tensor(array.astype(np.float32) if array.dtype == np.float64 else array)


# --- fused operators --------------------------------------------------------------------------------------------


def fused(name, *args, **kwargs):
    """Return the first result of a function in float64."""
    return MindSporeFramework().replay(call_of("Functional", name, args, kwargs, is_widened=True)).values["0"].values


def attention(q, k, v, hidden, scale):
    """Attention of [batch, heads, length, size], written out."""
    scores = np.where(hidden, -np.inf, np.einsum("bhqd,bhkd->bhqk", q, k) * scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), v)


Q, K, V = (np.random.default_rng(seed).standard_normal((2, 3, 5, 4)) for seed in range(3))
CAUSAL = np.triu(np.ones((5, 5), bool), 1)


def laid_out(x, layout):
    if layout in ("BNSD", "BSND"):
        return x if layout == "BNSD" else x.swapaxes(1, 2)
    rows = x.transpose((0, 2, 1, 3) if layout == "BSH" else (2, 0, 1, 3))
    return rows.reshape(*rows.shape[:2], -1)


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_flash_attention_in_every_layout(layout):
    given = (laid_out(x, layout) for x in (Q, K, V))
    found = fused(
        "flash_attention_score", *given, 3, scalar_value=0.5, attn_mask=CAUSAL, sparse_mode=1, input_layout=layout
    )
    assert error_of(found, laid_out(attention(Q, K, V, CAUSAL, 0.5), layout)) < 1e-14


ROWS, COLUMNS = np.arange(5)[:, None], np.arange(5)[None, :]
HIDDEN = {
    "none": (np.zeros((5, 5), bool), {"sparse_mode": 0}),
    "mask": (CAUSAL, {"sparse_mode": 0, "attn_mask": CAUSAL}),
    "band in a mask": (
        (ROWS - COLUMNS > 1) | (COLUMNS > ROWS),
        {"sparse_mode": 0, "attn_mask": CAUSAL, "pre_tokens": 1, "next_tokens": 3},
    ),
    "upper left": (CAUSAL, {"sparse_mode": 2, "attn_mask": np.triu(np.ones((8, 8), bool), 1)}),
    "lower right": (CAUSAL, {"sparse_mode": 3, "attn_mask": np.triu(np.ones((8, 8), bool), 1)}),
    "band": (
        (COLUMNS - ROWS > 1) | (ROWS - COLUMNS > 2),
        {"sparse_mode": 4, "attn_mask": np.triu(np.ones((8, 8), bool), 1), "pre_tokens": 2, "next_tokens": 1},
    ),
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_flash_attention_in_every_sparse_mode(kind):
    hidden, settings = HIDDEN[kind]
    found = fused("flash_attention_score", Q, K, V, 3, scalar_value=0.5, input_layout="BNSD", **settings)
    assert error_of(found, attention(Q, K, V, hidden, 0.5)) < 1e-14


def test_flash_attention_shares_heads_and_ends_the_longer_keys_at_the_lower_right():
    k, v = (np.concatenate((x, x[:, :, :2]), 2)[:, :1] for x in (K, V))
    hidden = np.arange(7)[None, :] - np.arange(5)[:, None] > 2
    found = fused("flash_attention_score", Q, k, v, 3, scalar_value=0.5, input_layout="BNSD", sparse_mode=3)
    assert error_of(found, attention(Q, *(np.repeat(x, 3, 1) for x in (k, v)), hidden, 0.5)) < 1e-14


def test_flash_attention_of_sequences_one_after_the_other():
    q, k, v = (x.transpose(0, 2, 1, 3).reshape(10, 3, 4) for x in (Q, K, V))
    ends = (3, 10)
    found = fused(
        "flash_attention_score", q, k, v, 3, scalar_value=0.5, input_layout="TND", actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
    )  # fmt: skip
    parts = [
        attention(*(x[a:b].swapaxes(0, 1)[None] for x in (q, k, v)), np.zeros((b - a, b - a), bool), 0.5)
        for a, b in ((0, 3), (3, 10))
    ]
    assert error_of(found, np.concatenate([part[0].swapaxes(0, 1) for part in parts])) < 1e-14


def test_attention_with_dropout_is_refused():
    with pytest.raises(ReplayError, match="dropout"):
        fused("flash_attention_score", Q, K, V, 3, keep_prob=0.9, input_layout="BNSD")


def test_rotary_embeddings_and_norms():
    x, cos, sin = Q, np.cos(K), np.sin(K)
    turned = np.concatenate((-x[..., 2:], x[..., :2]), -1)
    assert error_of(fused("rotary_position_embedding", x, cos, sin), x * cos + turned * sin) < 1e-15
    pairs = np.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    assert error_of(fused("rotary_position_embedding", x, cos, sin, 1), x * cos + pairs * sin) < 1e-15
    gate, up = Q[..., :2], Q[..., 2:]
    assert error_of(fused("swiglu", Q), gate / (1 + np.exp(-gate)) * up) < 1e-14
    whole = (Q + K) / np.sqrt(np.mean((Q + K) ** 2, -1, keepdims=True) + 1e-6) * V[0, 0, 0]
    assert error_of(fused("add_rms_norm", Q, K, V[0, 0, 0]), whole) < 1e-14
    assert error_of(fused("rms_norm", Q + K, V[0, 0, 0]), whole) < 1e-14
