"""References of fused operators agree with other compositions of PyTorch, forward and backward, also in scripts."""

import inspect

import pytest
import torch
from msprobe.pytorch import _replay
from msprobe.pytorch._formula_specialised import specialised_formula
from msprobe.pytorch._replay_table import find_function
from msprobe.pytorch._script_formula import named_arguments, whole_formula
from replaying import replay
from torch.nn import functional

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def as_in_a_script(formula):
    """Return the function that a script defines, with the arguments of the operator."""
    defined = {}
    exec("\n".join(["import torch, math", "import numpy as np", *formula.imports, formula.source]), defined)

    def called(*args, **kwargs):
        if formula.parameters is None:
            return defined[formula.name](*args, **kwargs)
        given = dict(named_arguments(inspect.signature(formula.function).bind(*args, **kwargs)))
        return defined[formula.name](*(given[name] for name in formula.parameters))

    return called


FORMULAS = {"whole": lambda call, function: whole_formula(function), "specialised": specialised_formula}


@pytest.fixture(autouse=True, params=["reference", *(pytest.param(each, marks=pytest.mark.slow) for each in FORMULAS)])
def formulas(request, monkeypatch):
    if request.param in FORMULAS:
        make, replay = FORMULAS[request.param], _replay._replay

        def replayed(call, *rest):
            function = as_in_a_script(make(call, find_function(call.site.prefix, call.site.path)))
            with monkeypatch.context() as patches:
                patches.setattr(_replay, "find_function", lambda prefix, name: function)
                return replay(call, *rest)

        monkeypatch.setattr(_replay, "_replay", replayed)


def randn(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def close(found, expected, dtype=torch.float64):
    bound = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=bound, atol=bound)


def gradients_of(function, inputs, gradient):
    leaves = [each.clone().requires_grad_() for each in inputs]
    return torch.autograd.grad(function(*leaves), leaves, gradient)


def taking(*tensors):
    return [each.clone().requires_grad_() for each in tensors]


# --- one result, differentiable in every tensor: name, inputs, other arguments, another composition -----------------

X = (3, 4, 8)


def gelu_by_tanh(x):
    return x * (1 + torch.tanh(1.702 / 2 * x)) / 2


def swiglu(x, dim=-1):
    half = x.shape[dim] // 2
    gate, up = x.narrow(dim, 0, half), x.narrow(dim, half, half)
    return gate / (1 + torch.exp(-gate)) * up


def rotated(x, cos, sin, mode="half"):
    """As complex numbers: of the halves, or of neighbours; cos and sin are equal for both parts."""
    pairs = torch.stack(x.chunk(2, -1), -1) if mode == "half" else x.unflatten(-1, (-1, 2))
    halves = [
        torch.stack(each.chunk(2, -1), -1) if mode == "half" else each.unflatten(-1, (-1, 2)) for each in (cos, sin)
    ]
    a, b = pairs.unbind(-1)
    (c0, c1), (s0, s1) = (each.unbind(-1) for each in halves)
    out = torch.stack((a * c0 - b * s0, b * c1 + a * s1), -1)
    return torch.cat(out.unbind(-1), -1) if mode == "half" else out.flatten(-2)


def masked_softmax(x, mask, scale=1.0):
    powers = torch.exp(x * scale - (x * scale).amax(-1, keepdim=True)) * ~mask
    return powers / powers.sum(-1, keepdim=True)


MASK = torch.rand(3, 1, 8, generator=torch.Generator().manual_seed(1)) < 0.4
MASK[..., 0] = False

PLAIN = {
    "fast_gelu": ("NPU.fast_gelu", [X], {}, gelu_by_tanh),
    "npu_fast_gelu": ("NPU.npu_fast_gelu", [X], {}, gelu_by_tanh),
    "gelu": (
        "NPU.npu_gelu",
        [X],
        {"approximate": "tanh"},
        lambda x, approximate: functional.gelu(x, approximate=approximate),
    ),
    "silu": ("NPU.npu_silu", [X], {}, lambda x: x * torch.sigmoid(x)),
    "mish": ("NPU.npu_mish", [X], {}, lambda x: x * torch.tanh(torch.log1p(torch.exp(x)))),
    "swiglu": ("NPU.npu_swiglu", [X], {}, swiglu),
    "swiglu dim 1": ("NPU.npu_swiglu", [X], {"dim": 1}, swiglu),
    "rotary": ("NPU.npu_rotary_mul", [(2, 5, 3, 8), (1, 5, 1, 8), (1, 5, 1, 8)], {}, rotated),
    "rotary interleave": (
        "NPU.npu_rotary_mul",
        [(2, 5, 3, 8), (1, 5, 1, 8), (1, 5, 1, 8)],
        {"rotary_mode": "interleave"},
        lambda x, cos, sin, rotary_mode: rotated(x, cos, sin, rotary_mode),
    ),
    "softmax": (
        "NPU.npu_scaled_masked_softmax",
        [X],
        {"mask": MASK, "scale": 0.3},
        lambda x, mask, scale: masked_softmax(x, mask, scale),
    ),
    "linear": ("NPU.npu_linear", [(4, 8), (5, 8), (5,)], {}, lambda x, w, b: torch.einsum("ij,kj->ik", x, w) + b),
    "layer norm": (
        "NPU.npu_layer_norm_eval",
        [X, (8,), (8,)],
        {"eps": 1e-3},
        lambda x, w, b, eps: (
            (x - x.mean(-1, keepdim=True)) * (x.var(-1, unbiased=False, keepdim=True) + eps) ** -0.5 * w + b
        ),
    ),
    "transpose first": (
        "NPU.npu_confusion_transpose",
        [(2, 3, 4, 6)],
        {"perm": (0, 2, 1, 3), "shape": (2, 4, 18), "transpose_first": True},
        lambda x, perm, shape, transpose_first: torch.einsum("abcd->acbd", x).reshape(shape),
    ),
    "transpose last": (
        "NPU.npu_confusion_transpose",
        [(2, 3, 4, 6)],
        {"perm": (0, 2, 1), "shape": (2, 12, 6), "transpose_first": False},
        lambda x, perm, shape, transpose_first: torch.einsum("abc->acb", x.reshape(shape)),
    ),
    "transpose": ("NPU.npu_transpose", [X], {"perm": (2, 0, 1)}, lambda x, perm: torch.einsum("abc->cab", x)),
    "sort": ("NPU.npu_sort_v2", [X], {"descending": True}, lambda x, descending: -torch.sort(-x).values),
}

BACKWARD = {
    "npu_fast_gelu": "NPU.npu_fast_gelu_backward",
    "gelu": "NPU.npu_gelu_backward",
    "mish": "NPU.npu_mish_backward",
    "swiglu": "NPU.npu_swiglu_backward",
    "swiglu dim 1": "NPU.npu_swiglu_backward",
    "rotary": "NPU.npu_rotary_mul_backward",
    "rotary interleave": "NPU.npu_rotary_mul_backward",
}
"""Functions that take the gradient and then the arguments of the forward."""


def arguments(case, dtype):
    name, shapes, others, function = PLAIN[case]
    inputs = [randn(*shape, dtype=dtype) for shape in shapes]
    if case == "layer norm":
        return name, [inputs[0], [8], *inputs[1:]], inputs, others, function
    return name, inputs, inputs, others, function


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", PLAIN)
def test_forward_and_gradients(case, dtype):
    name, args, inputs, others, function = arguments(case, dtype)
    wide = [each.double() for each in inputs]
    expected = function(*wide, **others)
    found = replay(name, *args, **others)
    assert found.keys() == {"0"}
    assert found["0"].dtype is dtype
    close(found["0"], expected, dtype)
    gradient = randn(*expected.shape, dtype=dtype)
    takes = [each.clone().requires_grad_() if isinstance(each, torch.Tensor) else each for each in args]
    found = replay(name, *takes, **others, gradients={"0": gradient})
    expected = gradients_of(lambda *each: function(*each, **others), wide, gradient.double())
    assert len(found) == len(inputs)
    for one, other in zip(found.values(), expected, strict=True):
        assert one.dtype is dtype
        close(one, other, dtype)


@pytest.mark.parametrize("case", BACKWARD)
def test_backward_functions(case):
    _, inputs, _, others, function = arguments(case, torch.float64)
    gradient = randn(*function(*inputs, **others).shape)
    found = replay(BACKWARD[case], gradient, *inputs, **others)
    expected = gradients_of(lambda *each: function(*each, **others), inputs, gradient)
    assert len(found) == len(inputs)
    for one, other in zip(found.values(), expected, strict=True):
        close(one, other)


def test_backward_functions_with_arguments_of_their_own():
    x, gradient = randn(*X), randn(*X)
    close(
        replay("NPU.npu_silu_backward", gradient, x, functional.silu(x))["0"],
        gradients_of(functional.silu, [x], gradient)[0],
    )
    result = masked_softmax(x, MASK, 0.3)
    (expected,) = gradients_of(lambda x: masked_softmax(x, MASK, 0.3), [x], gradient)
    close(replay("NPU.npu_scaled_masked_softmax_backward", gradient, result, MASK, 0.3, False)["0"], expected)
    a, w, gradient = randn(4, 8), randn(5, 8), randn(4, 5)
    for one, other in zip(
        replay("NPU.npu_linear_backward", gradient, a, w).values(),
        gradients_of(functional.linear, [a, w], gradient),
        strict=True,
    ):
        close(one, other)
    a, b, gradient = randn(3, 4, 8), randn(8, 5), randn(3, 4, 5)
    for prefix in ("NPU", "Aten"):
        found = replay(f"{prefix}.matmul_backward", gradient, a, b, [True, True])
        close(found["0"], gradient @ b.t())
        close(found["1"], torch.einsum("abc,abd->cd", a, gradient))
    assert replay("Aten.matmul_backward", gradient, a, b, [False, True]).keys() == {"1"}
    for transpose_first, shape, perm in ((True, [2, 4, 18], [0, 2, 1, 3]), (False, [2, 12, 6], [0, 2, 1])):
        x = randn(2, 3, 4, 6).requires_grad_()
        y = x.permute(perm).reshape(shape) if transpose_first else x.reshape(shape).permute(perm)
        gradient = randn(*y.shape)
        found = replay("NPU.npu_confusion_transpose_backward", gradient, perm, list(x.shape), not transpose_first)
        assert torch.equal(found["0"], torch.autograd.grad(y, x, gradient)[0])


def test_rotary_by_a_matrix():
    x, cos, sin = randn(2, 5, 3, 8), randn(1, 5, 1, 8), randn(1, 5, 1, 8)
    matrix = torch.zeros(8, 8, dtype=torch.float64)
    matrix[:4, 4:], matrix[4:, :4] = torch.eye(4), -torch.eye(4)
    close(replay("NPU.npu_rotary_mul", x, cos, sin, rotate=matrix)["0"], rotated(x, cos, sin))


def test_wholly_masked_rows_of_softmax_are_uniform():
    found = replay("NPU.npu_scaled_masked_softmax", randn(2, 4), torch.ones(2, 4, dtype=torch.bool))
    close(found["0"], torch.full((2, 4), 0.25))


# --- norms with statistics ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gamma_shape", [(8,), (4, 8)], ids=str)
def test_rms_norm(gamma_shape, dtype):
    x, gamma, gradient = randn(*X, dtype=dtype), randn(*gamma_shape, dtype=dtype), randn(*X, dtype=dtype)
    wide = [x.double(), gamma.double()]

    def norm(x, gamma):
        return functional.rms_norm(x, gamma_shape, gamma, 1e-3)

    found = replay("NPU.npu_rms_norm", x, gamma, epsilon=1e-3)
    close(found["0"], norm(*wide), dtype)
    assert found["1"].dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    rms = (wide[0] ** 2).mean(list(range(-len(gamma_shape), 0)), keepdim=True).add(1e-3).sqrt()
    close(found["1"], 1 / rms, dtype)
    expected = gradients_of(norm, wide, gradient.double())
    by_autograd = replay("NPU.npu_rms_norm", *taking(x, gamma), 1e-3, gradients={"0": gradient})
    by_itself = replay("NPU.npu_rms_norm_backward", gradient, x, gamma, found["1"])
    for results in (by_autograd, by_itself):
        for one, other in zip(results.values(), expected, strict=True):
            close(one, other, dtype)
    y = randn(*X, dtype=dtype)
    added = replay("NPU.npu_add_rms_norm", x, y, gamma, 1e-3)
    close(added["0"], norm(wide[0] + y.double(), wide[1]), dtype)
    assert torch.equal(added["2"], x + y)
    close(replay("NPU.npu_gemma_rms_norm", x, gamma, 1e-3)["0"], norm(wide[0], wide[1] + 1), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (3, 6)], ids=str)
def test_group_norm_silu(shape, dtype):
    x, weight, bias, gradient = (randn(*each, dtype=dtype) for each in (shape, (6,), (6,), shape))

    def layer(x, weight, bias):
        return functional.silu(torch.group_norm(x, 3, weight, bias, 1e-3))

    wide = [each.double() for each in (x, weight, bias)]
    found = replay("NPU.npu_group_norm_silu", x, weight, bias, 3, eps=1e-3)
    _, mean, rstd = torch.native_group_norm(*wide, shape[0], 6, x[0, 0].numel(), 3, 1e-3)
    for one, other in zip(found.values(), (layer(*wide), mean, rstd), strict=True):
        assert one.dtype is dtype
        close(one, other, dtype)
    found = replay("NPU.npu_group_norm_silu", *taking(x, weight, bias), 3, 1e-3, gradients={"0": gradient})
    for one, other in zip(found.values(), gradients_of(layer, wide, gradient.double()), strict=True):
        close(one, other, dtype)
    assert replay("NPU.npu_group_norm_silu", x, None, None, 3)["0"].shape == x.shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_group_norm_swish(dtype):
    x, weight, bias, gradient = (randn(*each, dtype=dtype) for each in ((2, 6, 4, 5), (6,), (6,), (2, 6, 4, 5)))

    def layer(x, weight, bias):
        normalized = torch.group_norm(x, 3, weight, bias, 1e-5)
        return normalized / (1 + torch.exp(-0.5 * normalized))

    wide = [each.double() for each in (x, weight, bias)]
    close(replay("NPU.npu_group_norm_swish", x, 3, weight, bias, swish_scale=0.5)["0"], layer(*wide), dtype)
    x, weight, bias = taking(x, weight, bias)
    found = replay("NPU.npu_group_norm_swish", x, 3, weight, bias, swish_scale=0.5, gradients={"0": gradient})
    for one, other in zip(found.values(), gradients_of(layer, wide, gradient.double()), strict=True):
        close(one, other, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction, smoothing, dtype):
    x, weight, target = randn(5, 7, dtype=dtype), torch.rand(7) + 0.5, torch.tensor([1, 0, -100, 6, 1])
    options = {"reduction": reduction, "label_smoothing": smoothing}

    def loss(x):
        loss = torch.nn.CrossEntropyLoss(weight.to(x.dtype), **options)(x, target)
        return loss.reshape(-1)

    found = replay("NPU.npu_cross_entropy_loss", x, target, weight, **options)
    assert found["0"].dtype is found["1"].dtype is dtype
    close(found["0"], loss(x.double()), dtype)
    close(found["1"], x.double() - torch.logsumexp(x.double(), -1, keepdim=True), dtype)
    assert found["2"].numel() == found["3"].numel() == 0
    gradient = randn(*found["0"].shape, dtype=dtype)
    (slope,) = gradients_of(loss, [x.double()], gradient.double())
    (leaf,) = taking(x)
    by_autograd = replay("NPU.npu_cross_entropy_loss", leaf, target, weight, **options, gradients={"0": gradient})
    by_itself = replay("NPU.npu_cross_entropy_loss_backward", gradient, found["1"], target, weight, **options)
    close(by_autograd["0"], slope, dtype)
    close(by_itself["0"], slope, dtype)


def test_gating():
    x = randn(5, 7)
    finished = torch.tensor([False, True, False, False, True])
    largest, experts = torch.topk(torch.softmax(x, -1), 3)
    found = replay("NPU.npu_moe_gating_top_k_softmax", x, finished, k=3)
    close(found["0"], largest)
    assert found["1"].dtype is torch.int32
    assert torch.equal(found["1"].long(), torch.where(finished[:, None], 7, experts))
    assert found["2"].tolist() == [[row + 5 * column for column in range(3)] for row in range(5)]
    deep = replay("NPU.npu_moe_gating_top_k_softmax", x[None], None, 3)
    assert torch.equal(deep["1"][0].long(), experts)
    assert deep["2"].shape == (1, 5, 3)


# --- optimizers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "nadam", "adamw", "amsgrad", "maximize"])
def test_optimizers(optimizer):
    """Three steps agree with those of torch.optim, which has epsilon elsewhere, so it is as small as possible."""
    torch.manual_seed(5)
    start = randn(6)
    theirs = start.clone().requires_grad_()
    betas, rate, decay, tiny = (0.9, 0.99), 0.1, 0.02, 1e-300
    if optimizer in ("adam", "nadam"):
        make = torch.optim.Adam([theirs], lr=rate, betas=betas, eps=tiny)
    else:
        options = {} if optimizer == "adamw" else {optimizer: True}
        make = torch.optim.AdamW([theirs], lr=rate, betas=betas, eps=tiny, weight_decay=decay, **options)
    state = [start, torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)]
    largest = torch.zeros(6, dtype=torch.float64)
    for step in range(1, 4):
        theirs.grad = randn(6)
        before = step if optimizer in ("adam", "nadam") else step - 1
        powers = betas[0] ** before, betas[1] ** before
        if optimizer in ("adam", "nadam"):
            is_nesterov = optimizer == "nadam"
            found = replay(
                "NPU.npu_apply_adam", *powers, rate, *betas, tiny, theirs.grad, False, is_nesterov, out=state
            )
        else:
            flags = (largest, optimizer == "amsgrad", optimizer == "maximize")
            found = replay("NPU.npu_apply_adam_w", *powers, rate, decay, *betas, tiny, theirs.grad, *flags, out=state)
            largest = torch.maximum(largest, found["2"])
        if optimizer == "nadam":
            first = betas[0] * state[1] + (1 - betas[0]) * theirs.grad
            second = betas[1] * state[2] + (1 - betas[1]) * theirs.grad**2
            ahead = betas[0] * first + (1 - betas[0]) * theirs.grad
            corrected = ahead / (1 - powers[0]) / (second / (1 - powers[1])).sqrt()
            expected = state[0] - rate * corrected
        else:
            make.step()
            expected = theirs.detach()
        state = list(found.values())
        close(state[0], expected)
    if optimizer != "nadam":
        close(state[1], make.state[theirs]["exp_avg"])
        close(state[2], make.state[theirs]["exp_avg_sq"])


def test_epsilon_of_adam_is_beside_the_uncorrected_root():
    state = [torch.zeros(1, dtype=torch.float64)] * 3
    found = replay(
        "NPU.npu_apply_adam", 0.5, 0.75, 1.0, 0.5, 0.75, 0.5, torch.tensor([2.0]).double(), None, None, out=state
    )
    # m = 1, v = 1, rate = sqrt(1/4) / (1/2) = 1
    close(found["0"], torch.tensor([-1 / 1.5], dtype=torch.float64))
    found = replay(
        "NPU.npu_apply_adam_w",
        1.0,
        1.0,
        1.0,
        0.0,
        0.5,
        0.75,
        0.5,
        torch.tensor([2.0]).double(),
        None,
        False,
        False,
        out=state,
    )
    # corrected: m = 2, v = 4
    close(found["0"], torch.tensor([-2 / 2.5], dtype=torch.float64))


# --- attention ------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.permute(0, 2, 1, 3),
    "BSH": lambda x: x.permute(0, 2, 1, 3).flatten(2),
    "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2),
}
B, N, S, T, D = 2, 4, 5, 7, 6
SCALE = 0.3


def triangle():
    return torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def diagonal(rows, columns, low, high):
    """True where a query may look: low <= column - row <= high."""
    ones = torch.ones(rows, columns, dtype=torch.bool)
    return ones.triu(low) & ones.tril(high)


def visible(mode, rows, columns):
    lower_right = columns - rows
    return {
        2: diagonal(rows, columns, -rows, 0),
        3: diagonal(rows, columns, -rows, lower_right),
        4: diagonal(rows, columns, lower_right - 2, lower_right + 1),
    }[mode]


def oracle(q, k, v, seen=None, pse=None):
    groups = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(groups, 1) for each in (k, v))
    bias = (
        torch.zeros(q.shape[-2], k.shape[-2], dtype=q.dtype)
        if seen is None
        else torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, -torch.inf)
    )
    bias = bias if pse is None else bias + SCALE * pse
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=SCALE)


def statistics(q, k, seen):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = (q.double() @ k.double().transpose(-1, -2) * SCALE).masked_fill(~seen, -torch.inf)
    largest = scores.amax(-1, keepdim=True)
    wide = (largest, torch.exp(scores - largest).sum(-1, keepdim=True))
    return [each.expand(*each.shape[:3], 8) for each in wide]


def qkv(dtype=torch.float64, key_heads=2, rows=S):
    return [randn(B, heads, length, D, dtype=dtype) for heads, length in ((N, rows), (key_heads, T), (key_heads, T))]


MASKS = {
    "none": ({}, lambda: torch.ones(S, T, dtype=torch.bool)),
    "0": ({"atten_mask": ~diagonal(S, T, -2, 1), "pre_tockens": 2, "next_tockens": 1}, lambda: diagonal(S, T, -2, 1)),
    "1": ({"atten_mask": (~diagonal(S, T, -9, 2)).expand(B, 1, S, T), "sparse_mode": 1}, lambda: diagonal(S, T, -9, 2)),
    "1 uint8": (
        {"atten_mask": (~diagonal(S, T, -9, 2)).to(torch.uint8), "sparse_mode": 1},
        lambda: diagonal(S, T, -9, 2),
    ),
    **{
        str(mode): (
            {"atten_mask": triangle(), "sparse_mode": mode, "pre_tockens": 2, "next_tockens": 1},
            lambda mode=mode: visible(mode, S, T),
        )
        for mode in (2, 3, 4)
    },
    "6": (
        {
            "atten_mask": torch.cat([triangle(), (torch.arange(2048) >= 1024).expand(1024, 2048)]),
            "sparse_mode": 6,
            "prefix": [4, 6],
        },
        lambda: torch.stack([visible(3, S, T) | (torch.arange(T) < end) for end in (4, 6)])[:, None],
    ),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention(layout, mask):
    options, seen = MASKS[mask][0], MASKS[mask][1]()
    inputs = qkv()
    order = LAYOUTS[layout]
    args = [order(each) for each in inputs]
    found = replay("NPU.npu_fusion_attention", *args, N, layout, scale=SCALE, **options)
    expected = oracle(*inputs, seen)
    close(found["0"], order(expected))
    for path, numbers in zip("12", statistics(*inputs[:2], seen), strict=True):
        close(found[path], numbers)
    assert found["3"].numel() == 0
    gradient = randn(*expected.shape)
    slopes = gradients_of(lambda *each: oracle(*each, seen), inputs, gradient)
    by_autograd = replay(
        "NPU.npu_fusion_attention", *taking(*args), N, layout, scale=SCALE, **options, gradients={"0": order(gradient)}
    )
    by_itself = replay(
        "NPU.npu_fusion_attention_grad",
        *args,
        order(gradient),
        N,
        layout,
        scale_value=SCALE,
        **options,
        softmax_max=found["1"],
        softmax_sum=found["2"],
        attention_in=found["0"],
    )
    for i, slope in enumerate(slopes):
        close(by_autograd[str(i)], order(slope))
        close(by_itself[str(i)], order(slope))
    assert by_itself["3"].numel() == by_itself["4"].numel() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_in_its_own_precision(dtype):
    inputs = qkv(dtype)
    wide = [each.double() for each in inputs]
    found = replay("NPU.npu_fusion_attention", *inputs, N, "BNSD", scale=SCALE)
    assert [found[path].dtype for path in "0123"] == [dtype, torch.float32, torch.float32, dtype]
    close(found["0"], oracle(*wide), dtype)
    gradient = randn(B, N, S, D, dtype=dtype)
    slopes = gradients_of(oracle, wide, gradient.double())
    results = replay("NPU.npu_fusion_attention", *taking(*inputs), N, "BNSD", scale=SCALE, gradients={"0": gradient})
    given = {"softmax_max": found["1"], "softmax_sum": found["2"], "attention_in": found["0"]}
    direct = replay("NPU.npu_fusion_attention_grad", *inputs, gradient, N, "BNSD", scale_value=SCALE, **given)
    for i, slope in enumerate(slopes):
        assert results[str(i)].dtype is direct[str(i)].dtype is dtype
        close(results[str(i)], slope, dtype)
        close(direct[str(i)], slope, dtype)


@pytest.mark.parametrize("shape", [(B, N, S, T), (1, N, S, T), (B, N, 1, T)], ids=str)
def test_position_encodings(shape):
    inputs, pse, gradient = qkv(), randn(*shape), randn(B, N, S, D)
    expected = gradients_of(lambda q, k, v, pse: oracle(q, k, v, None, pse), [*inputs, pse], gradient)
    found = replay("NPU.npu_fusion_attention", *inputs, N, "BNSD", pse, scale=SCALE)
    close(found["0"], oracle(*inputs, None, pse))
    scaled = replay("NPU.npu_fusion_attention_v2", *inputs, N, "BNSD", pse=SCALE * pse, scale=SCALE, pse_type=0)
    close(scaled["0"], found["0"])
    args = (*taking(*inputs), N, "BNSD", *taking(pse))
    by_autograd = replay("NPU.npu_fusion_attention", *args, scale=SCALE, gradients={"0": gradient})
    direct = replay("NPU.npu_fusion_attention_grad_v2", *inputs, gradient, N, "BNSD", pse=pse, scale_value=SCALE)
    for one, two, other in zip(by_autograd.values(), direct.values(), expected, strict=False):
        close(one, other)
        close(two, other)


@pytest.mark.parametrize("softmax_layout", ["", "TND"])
@pytest.mark.parametrize("mode", [None, 0, 2, 3, 4])
def test_packed_sequences(mode, softmax_layout):
    rows, columns = [3, 2, 4], [5, 2, 6]
    ends = {"actual_seq_qlen": [3, 5, 9], "actual_seq_kvlen": [5, 7, 13]}
    q, k, v, gradient = randn(9, N, D), randn(13, 2, D), randn(13, 2, D), randn(9, N, D)
    options, seen = {}, [torch.ones(r, c, dtype=torch.bool) for r, c in zip(rows, columns, strict=True)]
    if mode == 0:
        full = diagonal(4, 6, -4, 1)
        options, seen = {"atten_mask": ~full}, [full[:r, :c] for r, c in zip(rows, columns, strict=True)]
    elif mode is not None:
        options = {"atten_mask": triangle(), "sparse_mode": mode}
        options |= {"pre_tockens": 2, "next_tockens": 1} if mode == 4 else {}
        seen = [visible(mode, r, c) for r, c in zip(rows, columns, strict=True)]

    def apart(x, lengths):
        return [each.transpose(0, 1)[None] for each in x.split(lengths)]

    def each_alone(q, k, v):
        parts = zip(apart(q, rows), apart(k, columns), apart(v, columns), seen, strict=True)
        return torch.cat([oracle(*part)[0].transpose(0, 1) for part in parts])

    common = {**ends, **options, "softmax_layout": softmax_layout}
    found = replay("NPU.npu_fusion_attention", q, k, v, N, "TND", scale=SCALE, **common)
    close(found["0"], each_alone(q, k, v))
    largest = [statistics(a, b, c)[0][0] for a, b, c in zip(apart(q, rows), apart(k, columns), seen, strict=True)]
    stored = (
        torch.cat([each.transpose(0, 1) for each in largest])
        if softmax_layout
        else torch.cat([each.reshape(-1, 8) for each in largest])
    )
    assert found["1"].shape == (9, N, 8)
    close(found["1"].reshape(stored.shape), stored)
    slopes = gradients_of(each_alone, [q, k, v], gradient)
    args = (*taking(q, k, v), N, "TND")
    by_autograd = replay("NPU.npu_fusion_attention", *args, scale=SCALE, **common, gradients={"0": gradient})
    given = {"softmax_max": found["1"], "softmax_sum": found["2"], "attention_in": found["0"]}
    direct = replay("NPU.npu_fusion_attention_grad", q, k, v, gradient, N, "TND", scale_value=SCALE, **common, **given)
    for i, slope in enumerate(slopes):
        close(by_autograd[str(i)], slope)
        close(direct[str(i)], slope)


def test_backward_of_one_block_of_ring_attention():
    """With the maxima and sums of all keys, gradients of two blocks of keys add up to those of the whole."""
    q, k, v = qkv(key_heads=N)
    gradient = randn(B, N, S, D)
    whole = replay("NPU.npu_fusion_attention", q, k, v, N, "BNSD", scale=SCALE)
    given = {"softmax_max": whole["1"], "softmax_sum": whole["2"], "attention_in": whole["0"], "scale_value": SCALE}
    parts = [
        replay("NPU.npu_fusion_attention_grad", q, k[:, :, span], v[:, :, span], gradient, N, "BNSD", **given)
        for span in (slice(3), slice(3, None))
    ]
    dq, dk, dv = gradients_of(oracle, [q, k, v], gradient)
    close(parts[0]["0"] + parts[1]["0"], dq)
    close(torch.cat([part["1"] for part in parts], 2), dk)
    close(torch.cat([part["2"] for part in parts], 2), dv)
