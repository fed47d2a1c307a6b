"""Functions that are wrong in every precision are wrong in their replays too: independent formulas notice it."""

import pytest
import torch
from bare_scripts import run_bare
from replay_scripts import COMMAND, run_here
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


# --- arguments that no formula takes ----------------------------------------------------------------------------------


def test_arguments_that_no_formula_takes_leave_the_function_as_it_is(tmp_path):
    entry = "Functional.scaled_dot_product_attention.0.forward"
    masked = torch.zeros(6, 6, dtype=torch.bool)
    masked[1:] = True  # one query may attend to nothing

    def make(cast):
        functional.scaled_dot_product_attention(*map(cast, _data(3, 2, 2, 6, 8)), attn_mask=masked)

    _, verdict = checked(recorded(tmp_path, make), entry)
    assert (verdict.verdict, verdict.notes) == (Verdict.RIGHT, ())
