"""Which of PyTorch's functions are replayed: most of the numerical ones, and none that a dump could do harm with."""

import math
import warnings

import pytest
import torch
from every_function import examples
from msprobe.pytorch import PrecisionDebugger, _replay
from msprobe.pytorch._replay_table import find_function, num_factors
from replaying import call_of, replay
from torch.overrides import TorchFunctionMode

from msprobe_core.errors import ReplayError
from msprobe_core.replay.recorded import RecordedCalls
from msprobe_core.replay.replays import Replayer
from msprobe_core.store.reading import read_dump

MOST = 1 << 28


def record(place, run):
    debugger = PrecisionDebugger(dump_path=place, level="L1", risk_level="ALL", task="tensor")
    try:
        with warnings.catch_warnings(), debugger.start():
            warnings.simplefilter("ignore")
            run()
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    return RecordedCalls(read_dump(unit), MOST)


class Framework:
    replay = staticmethod(_replay.replay)


# --- every function -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    found = [(function, *make()) for function, _, make in examples()[1]]
    recorded = record(
        tmp_path_factory.mktemp("every"), lambda: [function(*args, **kwargs) for function, args, kwargs in found]
    )
    return [recorded.read(entry) for entry in recorded.entries]


@pytest.fixture(scope="module")
def outcomes(calls):
    """For each call why it is not replayed, and its replays."""
    found = {}
    for call in calls:
        reason = _replay.why_not_replayed(call.site) or (call.missing and call.missing.code.value)
        replayer = None
        if not reason:
            try:
                replayer = Replayer(call, Framework, None, MOST)
            except ReplayError as error:
                reason = str(error)
        found[call.entry] = call, reason, replayer
    return found


NOT_IN_TABLE = "it is not among the numerical functions of PyTorch that are called for a dump"

MOST_WITHOUT = 50
"""Entries that are not in the table, with PyTorch 2.13: steps of LAPACK, Bessel functions, histograms."""

LEAST_SHARE = 0.9
"""With PyTorch 2.13 1,188 of 1,279 calls are replayed, which are 92.9 %."""


def test_most_functions_are_replayed(outcomes):
    replayed = [entry for entry, (_, reason, _) in outcomes.items() if reason is None]
    without = sorted(entry for entry, (_, reason, _) in outcomes.items() if reason == NOT_IN_TABLE)
    print(f"{len(replayed)} of {len(outcomes)} are replayed; {len(without)} are not in the table: {without}")
    assert len(replayed) >= LEAST_SHARE * len(outcomes)
    assert len(without) <= MOST_WITHOUT


def test_what_is_in_the_table_can_be_called_again(outcomes):
    failed = {entry: reason for entry, (_, reason, _) in outcomes.items() if reason and "cannot be called" in reason}
    assert failed == {}


def test_replays_have_the_recorded_dtypes(outcomes):
    for entry, (call, reason, replayer) in outcomes.items():
        if reason is None and replayer.plain.own is not None:
            for path, value in call.outputs.items():
                assert replayer.plain.own[path].dtype == value.dtype, entry


def test_sizes_of_results_are_within_the_bound(outcomes):
    """The bound that replaces a meta run holds for every function that it is taken for."""
    num_checked = 0
    for entry, (call, _, _) in outcomes.items():
        factors = num_factors(call.site.prefix, call.site.path)
        if not factors or not call.tensors:
            continue
        num_checked += 1
        sizes = [value.values.size for value in call.tensors.values()]
        bound = math.prod(max(size, 1) for size in sorted(sizes)[-factors:]) + sum(sizes)
        others = 1 + len(call.scalars) - len(sizes)
        assert sum(value.values.size for value in call.outputs.values()) <= 16 * others**2 * bound, entry
    assert num_checked > 500


def test_functions_with_a_bound_are_in_the_table():
    for name in ("softmax", "linear", "getitem", "repeat"):
        assert num_factors("Functional", name) is None or find_function("Functional", name)
    assert num_factors("Tensor", "repeat") is num_factors("Tensor", "new_zeros") is num_factors("Torch", "full") is None
    assert num_factors("Functional", "pad") is num_factors("Functional", "conv2d") is None


# --- reasons --------------------------------------------------------------------------------------------------------

REASONS = {
    "Torch.empty": "nothing was written to",
    "Tensor.as_strided": "memory around its argument",
    "Functional.ctc_loss": "outside of its arguments",
    "Torch.mvlgamma": "how long it computes",
    "Tensor.to_sparse": "sparse",
    "Torch.randn": "random numbers",
    "Distributed.all_reduce": "communicates",
    "Torch.load": "not among",
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name):
    assert REASONS[name] in _replay.why_not_replayed(call_of(name, []).site)


# --- dumps made for harm --------------------------------------------------------------------------------------------

FAR = (10**6, -(10**6), 2**40)
X = torch.arange(12.0).reshape(3, 4)


def whole(*values):
    return torch.tensor(values)


CRAFTED = {
    "Tensor.index_reduce": lambda far: ([X, 0, whole(far), X[:1], "prod"], {}),
    "Tensor.index_add": lambda far: ([X, 0, whole(far), X[:1]], {}),
    "Tensor.index_select": lambda far: ([X, 0, whole(far)], {}),
    "Tensor.index_put": lambda far: ([X, [whole(far)], X[0]], {}),
    "Tensor.put": lambda far: ([X, whole(far), X[0, :1]], {}),
    "Tensor.take": lambda far: ([X, whole(far)], {}),
    "Tensor.gather": lambda far: ([X, 0, whole(far)[:, None]], {}),
    "Tensor.scatter": lambda far: ([X, 0, whole(far)[:, None], X[:1, :1]], {}),
    "Tensor.select_scatter": lambda far: ([X, X[0], 0, far], {}),
    "Tensor.__getitem__": lambda far: ([X, whole(far)], {}),
    "Functional.embedding": lambda far: ([whole(far), X], {}),
    "Functional.nll_loss": lambda far: ([X, whole(0, 1, far)], {}),
    "Functional.cross_entropy": lambda far: ([X, whole(0, 1, far)], {}),
    "Functional.multi_margin_loss": lambda far: ([X, whole(0, 1, far)], {}),
    "Functional.multilabel_margin_loss": lambda far: ([X[0], whole(0, 1, far, -1)], {}),
    "Functional.max_unpool1d": lambda far: ([X[None, :1, :2], whole(0, far)[None, None], 2], {}),
    "Functional.max_unpool2d": lambda far: ([X[None, None, :1, :2], whole(0, far)[None, None, None], 2], {}),
    "Functional.max_unpool3d": lambda far: (
        [X[None, None, None, :1, :2], whole(0, far)[None, None, None, None], 2],
        {},
    ),
    "Functional.one_hot": lambda far: ([whole(abs(far))], {}) if abs(far) > 2**30 else ([whole(far), 4], {}),
    "Torch.searchsorted": lambda far: ([X[0], X[1]], {"sorter": whole(0, 1, 2, far)}),
    "Torch.repeat_interleave": lambda far: ([X, whole(1, 1, -1 if far < 2**30 else far), 0], {}),
    "Torch.bincount": lambda far: ([whole(far if far > 2**30 else -1)], {}),
    "Torch._grouped_mm": lambda far: ([X, X.t().expand(2, 4, 3)], {"offs": whole(1, far).clamp(max=2**30).int()}),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_indices_are_checked(name):
    for far in FAR:
        args, kwargs = CRAFTED[name](far)
        with pytest.raises(ReplayError):
            replay(name, *args, **kwargs)


LARGE = {
    "Torch.repeat_interleave": ([whole(2**40)], {}),
    "Tensor.repeat_interleave": ([X, 2**40], {}),
    "Torch.bincount": ([whole(1)], {"minlength": 2**40}),
    "Functional.one_hot": ([whole(1), 2**40], {}),
    "Torch.cov": ([torch.zeros(1 << 15, 1)], {}),
    "Torch.corrcoef": ([torch.zeros(1 << 15, 1)], {}),
    "Torch.diagflat": ([torch.zeros(1 << 15)], {}),
    "Torch.tril_indices": ([1 << 20, 1 << 20], {}),
    "Torch.hann_window": ([1 << 40], {}),
    "Torch.logspace": ([0, 1, 1 << 40], {}),
    "Torch.histc": ([X], {"bins": 1 << 40}),
    "Torch.fft_hfft2": ([X], {"s": [1 << 20, 1 << 20]}),
    "Torch.constant_pad_nd": ([X, [1 << 40, 1 << 40]], {}),
    "Functional.max_unpool2d": (
        [X[None, None, :1, :2], whole(0, 1)[None, None, None], 2],
        {"output_size": [1 << 20, 1 << 20], "stride": 1 << 19},
    ),
    "Tensor.expand_copy": ([X[:1, :1], [1 << 20, 1 << 20]], {}),
    "Torch.linalg_qr": ([torch.zeros(1 << 15, 1)], {"mode": "complete"}),
}


@pytest.mark.parametrize("name", LARGE)
def test_results_of_any_size_are_refused(name):
    args, kwargs = LARGE[name]
    with pytest.raises(ReplayError):
        replay(name, *args, **kwargs)


def test_broadcasting_counts():
    """Small arguments may have large results; then the meta run decides, as before."""
    column = torch.zeros(1 << 15, 1)
    with pytest.raises(ReplayError, match="1,073,741,824 elements"):
        replay("Tensor.add", column, column.t())


# --- what made replays fail -----------------------------------------------------------------------------------------


def test_empty_tensors_of_other_shapes_are_not_one_tensor(tmp_path):
    def run():
        a, b = torch.zeros(5, 0, requires_grad=True), torch.zeros(0, 5, requires_grad=True)
        torch.mm(a, b).sum().backward()

    calls = record(tmp_path, run)
    replayed = Replayer(calls.read("Torch.mm.0.backward"), Framework, None, MOST).plain.own
    assert [value.values.shape for value in replayed.values()] == [(5, 0), (0, 5)]


def test_gradients_without_memory(tmp_path):
    calls = record(tmp_path, lambda: torch.sgn(torch.ones(3, requires_grad=True)).sum().backward())
    (value,) = Replayer(calls.read("Torch.sgn.0.backward"), Framework, None, MOST).plain.own.values()
    assert value.values.tolist() == [0.0, 0.0, 0.0]


def gradients(function, *inputs):
    leaves = [each.clone().requires_grad_() for each in inputs]
    result = function(*leaves)
    return torch.autograd.grad(result, leaves, torch.ones_like(result))


@pytest.mark.parametrize("kind", ["2d 3d", "3d 2d", "2d 2d", "3d 3d"])
def test_grouped_mm(kind):
    torch.manual_seed(0)
    shapes = {
        "2d 3d": ((7, 4), (3, 4, 5)),
        "3d 2d": ((3, 6, 4), (4, 7)),
        "2d 2d": ((6, 7), (7, 5)),
        "3d 3d": ((3, 6, 4), (3, 4, 5)),
    }
    a, b = (torch.randn(*shape, dtype=torch.float64) for shape in shapes[kind])
    offs = None if kind == "3d 3d" else torch.tensor([2, 2, 7], dtype=torch.int32)
    group = torch.repeat_interleave(torch.arange(3), torch.tensor([2, 0, 5]))
    mask = torch.nn.functional.one_hot(group, 3).double()
    formulas = {
        "2d 3d": lambda a, b: torch.einsum("mk,mg,gkn->mn", a, mask, b),
        "3d 2d": lambda a, b: torch.einsum("gmk,kn,ng->mn", a, b, mask),
        "2d 2d": lambda a, b: torch.einsum("mk,kg,kn->gmn", a, mask, b),
        "3d 3d": lambda a, b: torch.einsum("gmk,gkn->gmn", a, b),
    }
    expected = formulas[kind](a, b)
    for name in ("Functional.grouped_mm", "Torch._grouped_mm"):
        torch.testing.assert_close(replay(name, a, b, offs=offs)["0"], expected)
    found = replay(
        "Functional.grouped_mm",
        a.requires_grad_(),
        b.requires_grad_(),
        offs=offs,
        gradients={"0": torch.ones_like(expected)},
    )
    torch.testing.assert_close(list(found.values()), list(gradients(formulas[kind], a.detach(), b.detach())))


class Count(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.num_calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.num_calls += func is torch.nn.functional.linear
        return func(*args, **(kwargs or {}))


def test_small_calls_need_no_meta_run():
    with Count() as small:
        replay("Functional.linear", X, X, X[:, 0])
    large = torch.zeros(300, 2000)
    with Count() as counted:
        replay("Functional.linear", large, large)
    assert (small.num_calls, counted.num_calls) == (1, 2)
