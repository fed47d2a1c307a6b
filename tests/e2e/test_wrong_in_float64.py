"""Functions that are wrong in every precision are wrong in their replays too: independent formulas notice it."""

import msgspec
import pytest
import torch
from bare_scripts import run_bare
from msprobe.pytorch import _replay
from msprobe.pytorch._references import find_reference
from replay_scripts import COMMAND, run_here
from replaying import call_of
from torch.nn import functional
from wrong_kernels import kernel, record, scaled_gelu, scaled_gelu_backward

from msprobe_core.api_check.dump_check import CheckOptions, DumpCheck
from msprobe_core.api_check.reproducer import write_reproducer
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.replay_codes import ReplayCode


@pytest.fixture(autouse=True)
def _closed(close_debugger):
    return


# --- wrong kernels, in place while a call is recorded and while it is checked -----------------------------------------


def eps_outside_of_the_root(x, shape, weight, bias, eps):
    dims = tuple(range(-len(shape), 0))
    mean, deviation = x.mean(dims, keepdim=True), x.var(dims, unbiased=False, keepdim=True).sqrt()
    result = (x - mean) / (deviation + eps)
    result = result if weight is None else result * weight
    return (result if bias is None else result + bias), mean, 1 / (deviation + eps)


def unbiased_variance(x, weight, bias, running_mean, running_var, training, momentum, eps):
    dims = [dim for dim in range(x.ndim) if dim != 1]
    mean, variance = x.mean(dims, keepdim=True), x.var(dims, unbiased=True, keepdim=True)
    rstd = (variance + eps).rsqrt()
    return (x - mean) * rstd, mean.flatten(), rstd.flatten()


def sum_without_the_last(x, dim, half_to_float):
    powers = (x - x.amax(dim, keepdim=True)).exp()
    return powers / powers.narrow(dim, 0, x.shape[dim] - 1).sum(dim, keepdim=True)


def window_off_by_one(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    columns = functional.unfold(x.roll(1, -1), weight.shape[2:], dilation, padding, stride)
    result = weight.flatten(1) @ columns
    height = (x.shape[2] + 2 * padding[0] - weight.shape[2]) // stride[0] + 1
    return result.reshape(len(x), len(weight), height, -1) + (0 if bias is None else bias[:, None, None])


def mask_off_by_one(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2), float("-inf"))
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def exclusive_sum(x, dim, *, dtype=None):
    ones = torch.ones(x.shape[dim], x.shape[dim], dtype=x.dtype).tril(-1)
    return (ones @ x.movedim(dim, -1).unsqueeze(-1)).squeeze(-1).movedim(-1, dim)


def row_dropped(x, dim, index, source, *, alpha=1):
    result = x.clone()
    for place, row in list(zip(index.tolist(), source.unbind(dim), strict=True))[:-1]:
        result.select(dim, place).add_(row, alpha=alpha)
    return result


def mean_over_all(x, target, weight, reduction, ignore_index):
    chosen = x.gather(1, target.clamp(min=0)[:, None])[:, 0] * (target != ignore_index)
    return -chosen.sum() / len(target), x.new_tensor(float(len(target)))


def rows_shifted(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return weight.roll(1, 0).index_select(0, indices.flatten()).reshape(*indices.shape, -1)


def quick_silu(x):
    return x / (1 + (-1.1 * x).exp())


def eps_twice(x, first, second, *, value=1):
    return x + value * first / (second + 1e-3)


def _data(*shape):
    torch.manual_seed(0)
    return torch.randn(shape)


FAULTS = {
    "eps": ("native_layer_norm", eps_outside_of_the_root, "Functional.layer_norm.0.forward",
            lambda cast: functional.layer_norm(cast(_data(4, 32)), [32], eps=0.1)),
    "variance": ("native_batch_norm", unbiased_variance, "Functional.batch_norm.0.forward",
                 lambda cast: functional.batch_norm(cast(_data(4, 3, 5)), None, None, training=True)),
    "softmax": ("_softmax", sum_without_the_last, "Functional.softmax.0.forward",
                lambda cast: functional.softmax(cast(_data(4, 3)), 1)),
    "window": ("convolution", window_off_by_one, "Functional.conv2d.0.forward",
               lambda cast: functional.conv2d(cast(_data(2, 3, 8, 8)), cast(_data(4, 3, 3, 3)), padding=1)),
    "mask": ("_scaled_dot_product_flash_attention_for_cpu", mask_off_by_one,
             "Functional.scaled_dot_product_attention.0.forward",
             lambda cast: functional.scaled_dot_product_attention(*map(cast, _data(3, 2, 2, 6, 8)), is_causal=True)),
    "sum": ("cumsum", exclusive_sum, "Torch.cumsum.0.forward", lambda cast: torch.cumsum(cast(_data(5, 8)), 0)),
    "row": ("index_add", row_dropped, "Torch.index_add.0.forward",
            lambda cast: torch.index_add(cast(_data(5, 8)), 0, torch.tensor([1, 3, 1]), cast(_data(3, 8)))),
    "loss": ("nll_loss_forward", mean_over_all, "Functional.cross_entropy.0.forward",
             lambda cast: functional.cross_entropy(cast(_data(6, 9)), torch.tensor([1, -100, 3, -100, 5, 6]))),
    "rows": ("embedding", rows_shifted, "Functional.embedding.0.forward",
             lambda cast: functional.embedding(torch.tensor([[0, 3], [2, 2]]), cast(_data(5, 8)))),
    "gelu": ("gelu", scaled_gelu, "Functional.gelu.0.forward", lambda cast: functional.gelu(cast(_data(9, 9)))),
    "silu": ("silu", quick_silu, "Functional.silu.0.forward", lambda cast: functional.silu(cast(_data(9, 9)))),
    "gradient": ("gelu_backward", scaled_gelu_backward, "Functional.gelu.0.backward",
                 lambda cast: functional.gelu(cast(_data(9, 9)).requires_grad_()).sum().backward()),
    "step": ("addcdiv", eps_twice, "Torch.addcdiv.0.forward",
             lambda cast: torch.addcdiv(cast(_data(9)), cast(_data(9)), cast(_data(9).abs() / 50), value=-0.1)),
}  # fmt: skip
"""Operator, wrong kernel, the call that it makes wrong, and what makes the call of tensors cast to a dtype."""


def recorded(place, make, dtype=torch.float32):
    def run(debugger):
        with debugger.start():
            make(lambda x: x.to(dtype))

    return record(place, run, level="L1")


def checked(unit, entry):
    check = DumpCheck.of(unit, CheckOptions())
    return check, {each.entry: each for each in check.run(workers=0)}[entry]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_function_that_is_wrong_everywhere_is_wrong(tmp_path, fault, dtype):
    name, function, entry, make = fault
    with kernel(name, function):
        _, verdict = checked(recorded(tmp_path / "wrong", make, dtype), entry)
    assert verdict.verdict is Verdict.WRONG
    assert [note.code for note in verdict.notes] == [ReplayCode.FUNCTION_IS_OFF]
    _, verdict = checked(recorded(tmp_path / "right", make, dtype), entry)
    assert (verdict.verdict, verdict.notes) == (Verdict.RIGHT, ())


def test_a_right_result_is_right_where_the_function_is_wrong(tmp_path):
    name, function, entry, make = FAULTS["eps"]
    unit = recorded(tmp_path, make)
    with kernel(name, function):
        _, verdict = checked(unit, entry)
    assert verdict.verdict is Verdict.RIGHT
    assert [note.code for note in verdict.notes] == [ReplayCode.FUNCTION_IS_OFF]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["eps", "mask", "row"])
def test_the_script_carries_the_formula(tmp_path, monkeypatch, capsys, fault):
    name, function, entry, make = FAULTS[fault]
    with kernel(name, function):
        check, verdict = checked(recorded(tmp_path / "dump", make), entry)
        path = write_reproducer(
            check.read(entry), verdict, replaying_framework("pytorch"), tmp_path / "scripts", command=COMMAND
        )
        assert run_here(path, monkeypatch) == 1
        assert capsys.readouterr().out.count("WRONG") == 2  # what was recorded, and what this machine computes
    found = run_bare(path)
    assert (found.returncode, found.stderr) == (1, "")
    assert found.stdout.count("WRONG") == 1


# --- formulas ---------------------------------------------------------------------------------------------------------


def _d(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


INDEX = torch.tensor([[2, 0, 1], [0, 0, 3]])
CALLS = {
    "linear": ("Functional.linear", lambda: [_d(3, 2, 5), _d(4, 5), _d(4)], {}),
    "matmul": ("Torch.matmul", lambda: [_d(2, 1, 3, 4), _d(5, 4, 2)], {}),
    "vector": ("Tensor.__matmul__", lambda: [_d(4), _d(4, 2)], {}),
    "addmm": ("Torch.addmm", lambda: [_d(3), _d(2, 4), _d(4, 3)], {"beta": 0.5, "alpha": 2.0}),
    "conv2d": ("Functional.conv2d", lambda: [_d(2, 4, 9, 8), _d(6, 2, 3, 2), _d(6), (2, 1), (1, 0), (1, 2), 2], {}),
    "conv same": ("Functional.conv1d", lambda: [_d(4, 9), _d(6, 4, 4)], {"padding": "same"}),
    "embedding": ("Functional.embedding", lambda: [INDEX, _d(4, 3), 2], {}),
    "index_select": ("Tensor.index_select", lambda: [_d(3, 4), -1, torch.tensor([1, 1, 3])], {}),
    "gather": ("Tensor.gather", lambda: [_d(3, 4), 1, INDEX], {}),
    "scatter_add": ("Tensor.scatter_add", lambda: [_d(3, 4), 1, INDEX, _d(2, 3)], {}),
    "index_add": ("Torch.index_add", lambda: [_d(4, 3), 0, torch.tensor([1, 1, 3]), _d(3, 3)], {"alpha": 2.0}),
    "cumsum": ("Tensor.cumsum", lambda: [_d(3, 4), 0], {}),
    "layer_norm": ("Functional.layer_norm", lambda: [_d(3, 4, 5), (4, 5), _d(4, 5), _d(4, 5), 0.1], {}),
    "rms_norm": ("Functional.rms_norm", lambda: [_d(3, 5), (5,), _d(5)], {}),
    "group_norm": ("Functional.group_norm", lambda: [_d(2, 4, 3), 2, _d(4), _d(4)], {}),
    "batch_norm": ("Functional.batch_norm", lambda: [_d(2, 4, 3), _d(4).detach(), _d(4).detach() ** 2, _d(4)], {}),
    "softmax": ("Functional.softmax", lambda: [_d(3, 4), 0], {}),
    "log_softmax": ("Tensor.log_softmax", lambda: [_d(3, 4), -1], {}),
    "attention": ("Functional.scaled_dot_product_attention", lambda: [_d(2, 4, 5, 3), _d(2, 2, 6, 3), _d(2, 2, 6, 3)],
                  {"attn_mask": _d(5, 6).detach(), "enable_gqa": True}),
    "causal": ("Functional.scaled_dot_product_attention", lambda: [_d(2, 5, 3), _d(2, 6, 3), _d(2, 6, 4)],
               {"is_causal": True, "scale": 0.3}),
    "gelu": ("Functional.gelu", lambda: [_d(9) * 4], {}),
    "gelu tanh": ("Functional.gelu", lambda: [_d(9) * 4], {"approximate": "tanh"}),
    "silu": ("Functional.silu", lambda: [_d(9) * 20], {}),
    "tanh": ("Torch.tanh", lambda: [_d(9) * 4], {}),
    "mish": ("Functional.mish", lambda: [_d(9) * 4], {}),
    "cross_entropy": ("Functional.cross_entropy", lambda: [_d(3, 4, 2), torch.tensor([[1, 0], [-100, 3], [2, 2]])],
                      {"weight": torch.rand(4).double(), "label_smoothing": 0.1}),
    "probabilities": ("Functional.cross_entropy", lambda: [_d(3, 4), torch.rand(3, 4).double()],
                      {"label_smoothing": 0.1, "reduction": "sum"}),
    "bce": ("Functional.binary_cross_entropy_with_logits", lambda: [_d(3, 4), torch.rand(3, 4).double()],
            {"pos_weight": torch.rand(4).double()}),
    "lerp": ("Tensor.lerp_", lambda: [_d(3, 4), _d(3, 4), 0.1], {}),
    "addcmul": ("Tensor.addcmul_", lambda: [_d(3, 4), _d(3, 4), _d(3, 4)], {"value": 0.3}),
}  # fmt: skip
"""Name of the function, its arguments, and those by name."""


@pytest.mark.parametrize("given", CALLS.values(), ids=CALLS)
def test_formulas_agree_with_the_functions(given):
    torch.manual_seed(0)
    name, make, kwargs = given
    assert find_reference(*name.split("."))
    args = make()
    forward = call_of(name, args, kwargs, is_widened=True)
    (shape,) = [tuple(value.values.shape) for value in _replay.replay(forward, None).values.values()]
    backward = call_of(name, args, kwargs, {"0": torch.randn(shape, dtype=torch.float64)}, is_widened=True)
    for call in (forward, backward):
        found = _replay.replay(msgspec.structs.replace(call, by_reference=True), None).values
        expected = _replay.replay(call, None).values
        assert found.keys() == expected.keys()
        for path, value in expected.items():
            torch.testing.assert_close(
                torch.from_numpy(found[path].values), torch.from_numpy(value.values), rtol=1e-12, atol=1e-12
            )


def test_arguments_that_no_formula_takes_leave_the_function_as_it_is(tmp_path):
    entry = "Functional.scaled_dot_product_attention.0.forward"
    masked = torch.zeros(6, 6, dtype=torch.bool)
    masked[1:] = True  # one query may attend to nothing

    def make(cast):
        functional.scaled_dot_product_attention(*map(cast, _data(3, 2, 2, 6, 8)), attn_mask=masked)

    _, verdict = checked(recorded(tmp_path, make), entry)
    assert (verdict.verdict, verdict.notes) == (Verdict.RIGHT, ())


@pytest.mark.parametrize("name", ["gelu", "silu", "elu", "mish", "logsigmoid", "sigmoid", "tanh"])
def test_a_formula_keeps_its_digits_near_zero_and_has_the_gradient_there(name):
    from msprobe.pytorch._references import find_reference

    formula, function = find_reference("Functional", name), getattr(torch.nn.functional, name)
    for values in (torch.logspace(-30, -9, 50), torch.zeros(3), torch.linspace(-5, 30, 50)):
        for signed in (values.double(), -values.double()):
            given = [signed.clone().requires_grad_() for _ in range(2)]
            results = [called(each) for called, each in zip((formula, function), given, strict=True)]
            torch.testing.assert_close(*results, rtol=1e-9, atol=0)
            gradients = [torch.autograd.grad(made.sum(), each)[0] for made, each in zip(results, given, strict=True)]
            torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-15)
