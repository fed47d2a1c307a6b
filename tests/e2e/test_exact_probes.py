"""Exact probes: every linear kind in three dtypes on this machine, and planted kernels told from healthy ones."""

from unittest.mock import patch

import msgspec
import numpy as np
import pytest
import torch
from msprobe.pytorch import _replay_table
from msprobe.pytorch._framework import PyTorchFramework

from msprobe_core.api_check.exact_probes import ExactProber, exact_inputs, with_probe
from msprobe_core.api_check.probe_codes import ProbeCode
from msprobe_core.api_check.verdict import CallVerdict, Verdict
from msprobe_core.findings import Level
from msprobe_core.model import Argument, LinearKind, Phase, ReplayCall, ReplayTensor
from msprobe_core.names import parse_entry
from msprobe_core.replay.recorded import RecordedCall, map_tensors

FRAMEWORK = PyTorchFramework()
RANDOM = np.random.default_rng(0)


def floats(*shape):
    return ReplayTensor(values=np.zeros(shape, np.float32), dtype="float32")


def indices(most, *shape):
    return ReplayTensor(values=RANDOM.integers(0, most, shape), dtype="int64")


def plain(value):
    return Argument(type(value).__name__, value)


SIZES = [plain(12), plain(12)], [plain(3), plain(3)]
CALLS = {
    "linear": ("Functional.linear", [floats(8, 300), floats(40, 300), floats(40)], {}),
    "small matmul": ("Torch.matmul", [floats(6, 96), floats(96, 5)], {}),
    "matmul": ("Torch.matmul", [floats(3, 16, 700), floats(3, 700, 20)], {}),
    "@": ("Tensor.__matmul__", [floats(16, 64), floats(64, 20)], {}),
    "mm": ("Torch.mm", [floats(20, 300), floats(300, 7)], {}),
    "bmm": ("Torch.bmm", [floats(3, 10, 600), floats(3, 600, 7)], {}),
    "mv": ("Torch.mv", [floats(100, 600), floats(600)], {}),
    "dot": ("Torch.dot", [floats(3000), floats(3000)], {}),
    "outer": ("Torch.outer", [floats(10), floats(7)], {}),
    "addmm": ("Torch.addmm", [floats(10, 7), floats(10, 500), floats(500, 7)], {}),
    "addmm scaled": ("Torch.addmm", [floats(10, 7), floats(10, 500), floats(500, 7)],
                     {"alpha": plain(-2), "beta": plain(0.5)}),
    "baddbmm": ("Torch.baddbmm", [floats(3, 10, 7), floats(3, 10, 500), floats(3, 500, 7)], {}),
    "einsum": ("Torch.einsum", [plain("bik,bkj->bij"), floats(3, 10, 600), floats(3, 600, 7)], {}),
    "tensordot": ("Torch.tensordot", [floats(10, 40, 20), floats(40, 20, 6)], {"dims": plain(2)}),
    "conv1d": ("Functional.conv1d", [floats(2, 16, 50), floats(8, 16, 5), floats(8)], {}),
    "conv2d": ("Functional.conv2d", [floats(2, 40, 12, 12), floats(8, 40, 3, 3), floats(8)], {}),
    "conv3d": ("Functional.conv3d", [floats(1, 4, 6, 6, 6), floats(5, 4, 3, 3, 3)], {}),
    "conv_transpose2d": ("Functional.conv_transpose2d", [floats(2, 16, 9, 9), floats(16, 8, 3, 3)], {}),
    "sum": ("Torch.sum", [floats(5000)], {}),
    "sum of columns": ("Tensor.sum", [floats(300, 1000)], {"dim": plain(0)}),
    "mean": ("Tensor.mean", [floats(8, 512)], {"dim": plain(-1)}),
    "cumsum": ("Torch.cumsum", [floats(4, 2000)], {"dim": plain(1)}),
    "trace": ("Torch.trace", [floats(300, 300)], {}),
    "index_add": ("Tensor.index_add", [floats(5, 7), plain(0), indices(5, 2000), floats(2000, 7)], {}),
    "scatter_add": ("Tensor.scatter_add", [floats(5, 7), plain(0), indices(5, 3000, 7), floats(3000, 7)], {}),
    "embedding": ("Functional.embedding", [indices(10, 4, 900), floats(10, 6)], {}),
    "index_select": ("Torch.index_select", [floats(10, 6), plain(0), indices(10, 3000)], {}),
    "gather": ("Torch.gather", [floats(10, 6), plain(0), indices(10, 3000, 6)], {}),
    "expand": ("Tensor.expand", [floats(1, 6), plain(3000), plain(6)], {}),
    "x[i]": ("Tensor.__getitem__", [floats(50, 6), indices(50, 9000)], {}),
    "fold": ("Functional.fold", [floats(1, 27, 100), *SIZES], {}),
    "unfold": ("Functional.unfold", [floats(1, 3, 12, 12), SIZES[1]], {}),
}  # fmt: skip

NARROW = {
    # These add up in memory of the call's dtype, one term after the other.
    ("embedding", "bfloat16", "backward"), ("embedding", "float16", "backward"),
    ("x[i]", "bfloat16", "backward"), ("x[i]", "float16", "backward"),
    ("fold", "bfloat16", "forward"), ("fold", "float16", "forward"),
    ("unfold", "bfloat16", "backward"), ("unfold", "float16", "backward"),
    # Without a kernel of oneDNN, float16 is convolved by a product of matrices and by adding up patches, as by fold.
    ("conv1d", "float16", "backward"), ("conv2d", "float16", "backward"), ("conv3d", "float16", "backward"),
    ("conv_transpose2d", "float16", "forward"), ("conv_transpose2d", "float16", "backward"),
    # oneDNN has kernels for bfloat16 on processors with AVX-512 only.
    ("conv1d", "bfloat16", "backward"), ("conv2d", "bfloat16", "backward"), ("conv3d", "bfloat16", "backward"),
    ("conv_transpose2d", "bfloat16", "forward"), ("conv_transpose2d", "bfloat16", "backward"),
}  # fmt: skip
"""What PyTorch computes in less than float32 on a CPU; which of its kernels do depends on release and processor."""


def call_of(name, dtype="float32", phase="forward"):
    api, args, kwargs = CALLS[name]

    def cast(value):
        return value if value.dtype == "int64" else msgspec.structs.replace(value, dtype=dtype)

    def with_gradient(value):
        return value if value.dtype == "int64" else msgspec.structs.replace(value, takes_gradient=True)

    args = [map_tensors(value, cast) for value in args]
    site, gradients = parse_entry(f"{api}.0.{phase}"), {}
    if phase == "backward":
        found = FRAMEWORK.replay(ReplayCall(site=parse_entry(f"{api}.0.forward"), args=args, kwargs=kwargs))
        gradients = {
            path: msgspec.structs.replace(value, values=value.values * 0) for path, value in found.values.items()
        }
        args = [map_tensors(value, with_gradient) for value in args]
    return RecordedCall(entry=f"{api}.0.{phase}", site=site, args=args, kwargs=kwargs, gradients=gradients)


def probe(name, dtype="float32", phase="forward", **options):
    return ExactProber(framework=FRAMEWORK, **options).probe(call_of(name, dtype, phase))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_healthy_kernels_are_exact_or_said_to_be_narrow(name, dtype):
    for phase in ("forward", "backward"):
        found = probe(name, dtype, phase)
        allowed = {ProbeCode.EXACT, ProbeCode.EXACT_SHORT}
        if (name, dtype, phase) in NARROW:
            allowed.add(ProbeCode.NARROW)
        assert found.code in allowed, found.text


def test_long_sums_are_dense_enough_to_show_the_accumulator():
    for name in ("linear", "bmm", "einsum", "conv2d", "sum", "cumsum", "index_add"):
        for dtype in ("float32", "bfloat16", "float16"):
            assert probe(name, dtype).code is ProbeCode.EXACT


# --- planted kernels --------------------------------------------------------------------------------------------


def narrow_product(dtype):
    def matmul(a, b):
        if a.dtype is torch.float64:
            return torch.einsum("...ik,...kj->...ij", a, b)
        total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=dtype)
        for k in range(a.shape[-1]):
            total = (total + a[..., k : k + 1].to(dtype) * b[..., k : k + 1, :].to(dtype)).to(dtype)
        return total.to(a.dtype)

    return matmul


def without_last(a, b):
    cut = slice(None) if a.dtype is torch.float64 else slice(None, -1)
    return torch.einsum("...ik,...kj->...ij", a[..., cut], b[..., cut, :])


def off_by_one(a, b):
    shifted = a if a.dtype is torch.float64 else a.roll(1, -1)
    return torch.einsum("...ik,...kj->...ij", shifted, b)


def tf32(a, b):
    if a.dtype is torch.float64:
        return torch.einsum("...ik,...kj->...ij", a, b)
    cut = ((a.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return torch.einsum("...ik,...kj->...ij", cut, b)


def one_row_lost(a, dim, index, source):
    kept = slice(None) if a.dtype is torch.float64 else slice(None, -1)
    return torch.Tensor.index_add(a, dim, index[kept], source[kept])


def planted(kernel, prefix="Torch", name="matmul"):
    table = _replay_table._table()
    return patch.dict(table, {(prefix, name): kernel})


PLANTED = {
    "adds up in bfloat16": ("bfloat16", narrow_product(torch.bfloat16), ProbeCode.NARROW),
    "adds up in float16": ("float16", narrow_product(torch.float16), ProbeCode.NARROW),
    "computes in bfloat16": ("float32", narrow_product(torch.bfloat16), ProbeCode.NARROW),
    "computes in float16": ("float32", narrow_product(torch.float16), ProbeCode.NARROW),
    "computes in TF32": ("float32", tf32, ProbeCode.NARROW),
    "computes in float32": ("float64", None, ProbeCode.NARROW),
    "drops the last term": ("float32", without_last, ProbeCode.WRONG),
    "drops the last term of bfloat16": ("bfloat16", without_last, ProbeCode.WRONG),
    "takes the term before": ("float16", off_by_one, ProbeCode.WRONG),
}


@pytest.mark.parametrize("name", PLANTED)
def test_wrong_is_told_from_narrow(name):
    dtype, kernel, code = PLANTED[name]
    if kernel is None:  # of a device, as the oracle is in float64 too

        def run(call):
            with planted(lambda a, b: torch.mul(a.float().unsqueeze(-1), b.float().unsqueeze(-3)).sum(-2).double()):
                return FRAMEWORK.replay(call)

        assert probe("small matmul", dtype).code is ProbeCode.EXACT
        found = probe("small matmul", dtype, run=run, side="cuda:0")
        assert found.fields["side"] == "cuda:0"
    else:
        with planted(kernel):
            found = probe("small matmul" if code is ProbeCode.NARROW else "matmul", dtype)
    assert (found.code, found.level) == (code, Level.ERROR if code is ProbeCode.WRONG else Level.WARNING)
    assert found.text


def test_a_lost_row_and_a_wrong_gradient_are_wrong():
    with planted(one_row_lost, "Tensor", "index_add"):
        assert probe("index_add", "bfloat16").code is ProbeCode.WRONG

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return torch.mm(a, b)

        @staticmethod
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            if a.dtype is not torch.float64:
                gradient = torch.cat([gradient[:-1], gradient[-1:] * 0])
            return gradient @ b.T, a.T @ gradient

    with planted(Wrong.apply, name="mm"):
        assert probe("mm", "float32", "forward").code in (ProbeCode.EXACT, ProbeCode.EXACT_SHORT)
        assert probe("mm", "float32", "backward").code is ProbeCode.WRONG


# --- what is not probed -----------------------------------------------------------------------------------------


def test_why_a_call_is_not_probed():
    assert probe("mean").code is ProbeCode.EXACT
    prober = ExactProber(framework=FRAMEWORK)

    def of(api, *args, **kwargs):
        entry = f"{api}.0.forward"
        return prober.probe(RecordedCall(entry=entry, site=parse_entry(entry), args=list(args), kwargs=kwargs)).code

    assert of("Torch.mean", floats(1000)) is ProbeCode.DIVIDED
    assert of("Torch.addmm", floats(2, 2), floats(2, 2), floats(2, 2), alpha=plain(0.3)) is ProbeCode.SCALED
    assert of("Torch.exp", floats(3)) is ProbeCode.NOT_LINEAR
    assert of("Torch.mm", floats(3, 4), floats(3, 4)) is ProbeCode.NOT_REPLAYED
    assert of("Torch.sum", ReplayTensor(values=np.zeros(3, np.complex64), dtype="complex64")) is ProbeCode.DTYPE
    assert of("Torch.sum", floats(0)) is ProbeCode.EMPTY
    module = "Module.fc.Linear.forward.0"
    assert prober.probe(RecordedCall(entry=module, site=parse_entry(module))).code is ProbeCode.MODULE


def test_a_probe_is_a_note_of_a_verdict():
    found = probe("sum")
    before = CallVerdict(entry="Torch.sum.0.forward", api="Torch.sum.0", phase=Phase.FORWARD, verdict=Verdict.RIGHT)
    after = with_probe(before, found)
    assert (after.verdict, after.stage, after.notes) == (Verdict.RIGHT, 3, (found,))


def test_inputs_of_probes_are_not_read():
    row = {"key": "k", "dtype": "torch.float32", "shape": "[2, 3]", "min": None, "max": None, "file_name": "a.pt",
           "num_nan": None, "num_inf": None, "exact": None}  # fmt: skip
    assert exact_inputs()(row, "0").shape == (2, 3)
    assert exact_inputs()(row | {"dtype": "torch.int64"}, "0") is None  # the recorded ones
    made = exact_inputs()(row | {"dtype": "torch.int64", "file_name": None, "min": 2.0, "max": 4.0}, "0")
    assert (made.min(), made.max()) == (2, 4)


def test_linear_functions_are_among_those_that_are_replayed():
    for name in _replay_table._LINEAR.split():
        assert any(key[1] == name for key in _replay_table._table()), name
        assert _replay_table.linear_in(name) is LinearKind.SUM
    assert _replay_table.linear_in("index_add_") is LinearKind.SUM
    assert _replay_table.linear_in("mean") is LinearKind.MEAN
    assert _replay_table.linear_in("softmax") is None
