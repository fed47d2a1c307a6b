"""What an established tool was seen to say wrongly, or not at all, and what we say of the same."""

import numpy as np
import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import compare_dumps

NAN, INF = float("nan"), float("inf")
ENTRY = "Functional.linear.0.forward"
X = [[1.0, -2.0], [3.0, 4.0]]


def scaled(factor, **fields):
    return tensor([[v * factor for v in row] for row in X], **fields)


@pytest.fixture
def compare(tmp_path):
    def compare(target, golden, **header):
        sides = [
            write_dump(tmp_path / side, data if "." in next(iter(data)) else {ENTRY: data}, **header)
            for side, data in (("target", target), ("golden", golden))
        ]
        return compare_dumps(*sides)

    return compare


def verdict(result, row=f"{ENTRY}.output.0"):
    found = result.units[0].rows.filter(pl.coalesce("name_target", "name_golden") == row).row(0, named=True)
    return found["verdict"]


@pytest.mark.parametrize(
    ("given", "made", "expected"),
    [
        pytest.param(1.0, 1.0, "pass", id="identical"),
        pytest.param(1.0, 1.1, "error", id="10 % off"),
        pytest.param(1.0, 1.09, "error", id="9 % off"),
        pytest.param(1.001, 1.0101, "error", id="noise and ten times of it"),
        pytest.param(1 + 1e-7, 1 + 1.2e-6, "pass", id="roundings"),
        pytest.param(1.05, 1.6, "error", id="5 % and 60 %"),
        pytest.param(1.09, 1.51, "error", id="9 % and 51 %"),
        pytest.param(1.11, 1.99, "error", id="11 % and 99 %"),
    ],
)
def test_sizes(compare, given, made, expected):
    assert verdict(compare(*[api(scaled(g), output=scaled(m)) for g, m in ((given, made), (1, 1))])) == expected


@pytest.mark.parametrize(
    ("target", "golden", "expected"),
    [
        pytest.param(tensor(X, Max=400.0), tensor(X), "error", id="the maximum alone"),
        pytest.param(tensor(X, Mean=-1.5), tensor(X), "error", id="the sign of the mean"),
        pytest.param(tensor([1.0, 0.0]), tensor([0.0, 0.0]), "error", id="golden of zeros"),
        pytest.param(tensor([NAN, 1.0]), tensor([1.0, 1.0]), "error", id="NaN in the target"),
        pytest.param(tensor([1.0, 1.0]), tensor([NAN, 1.0]), "error", id="NaN in the golden alone"),
        pytest.param(tensor([NAN, 1.0]), tensor([NAN, 1.0]), "pass", id="NaN in both"),
        pytest.param(tensor([-INF, 1.0]), tensor([INF, 1.0]), "error", id="infinities of other signs"),
        pytest.param(tensor(X, Mean="NaN"), tensor(X), "error", id="NaN in the mean alone"),
        pytest.param(tensor(X, requires_grad=False), tensor(X), "warning", id="requires_grad"),
        pytest.param(tensor(X, dtype="torch.float16"), tensor(X), "pass", id="the dtype alone"),
        pytest.param(tensor(X, dtype="torch.float8_e5m2"), scaled(2.0), "error", id="float8 and twice"),
        pytest.param(tensor(X, dtype="Float32"), tensor(X), "pass", id="another framework's dtype"),
        pytest.param(tensor([1, 2], dtype="torch.int32"), tensor([1, 3], dtype="torch.int64"), "error", id="integers"),
        pytest.param(tensor(X, shape=[4]), tensor(X), "error", id="the shape"),
        pytest.param(tensor(NAN), tensor(NAN), "pass", id="no dimension, NaN in both"),
        pytest.param(tensor(NAN), tensor(1.0), "error", id="no dimension, NaN in the target"),
        pytest.param(tensor(2.5), tensor(2.0), "error", id="no dimension, 25 % off"),
        pytest.param(tensor([2.5]), tensor([2.0]), "error", id="one element, 25 % off"),
        pytest.param(None, tensor(X), "error", id="a gradient that is missing"),
    ],
)
def test_values(compare, target, golden, expected):
    assert verdict(compare(api(tensor(X), output=target), api(tensor(X), output=golden))) == expected


@pytest.mark.parametrize(
    ("kind", "target", "golden", "expected"),
    [("bool", True, False, "error"), ("int", 3, 4, "error"), ("str", "sum", "mean", "error"),
     ("str", "npu:0", "cuda:0", "pass"), ("torch.device", "npu", "cpu", "pass"), ("str", "npu:0", "sum", "error")],
)  # fmt: skip
def test_arguments(compare, kind, target, golden, expected):
    sides = [api(tensor(X), {"type": kind, "value": v}, output=tensor(X)) for v in (target, golden)]
    assert verdict(compare(*sides), f"{ENTRY}.input.1") == expected


def test_a_weight_that_is_wrong_by_200_per_cent(compare):
    result = compare(*[api(tensor(X), scaled(f), output=scaled(f)) for f in (3.0, 1.0)])
    assert [verdict(result, f"{ENTRY}.{row}") for row in ("input.0", "input.1", "output.0")] == ["pass", *["error"] * 2]
    assert result.units[0].fault.parts == ["parameters", "outputs"]


def test_the_bad_one_of_two_outputs(compare):
    result = compare(*[{"input_args": [tensor(X)], "output": [tensor(X), scaled(f)]} for f in (3.0, 1.0)])
    assert [verdict(result, f"{ENTRY}.output.{i}") for i in (0, 1)] == ["pass", "error"]
    assert [row for row, _ in result.units[0].fault.findings] == [f"{ENTRY}.output.1"]


@pytest.mark.parametrize("api_name", ["Tensor.to", "Tensor.__setitem__", "Tensor.numpy"])
def test_only_uninitialized_memory_is_exempt(compare, api_name):
    entry = f"{api_name}.0.forward"
    sides = [{entry: api(tensor(X), output=output)} for output in (tensor([NAN, 1.0]), tensor([1.0, 1.0]))]
    assert verdict(compare(*sides), f"{entry}.output.0") == "error"


def test_rows_of_one_side_are_shown_and_never_pass(compare):
    plain, extra = api(tensor(X), output=tensor(X)), api(tensor(X), tensor(X), output=tensor(X))
    for sides in ((extra, plain), (plain, extra)):
        result = compare(*sides)
        assert verdict(result, f"{ENTRY}.input.1") == "unmatched"
        assert not result.agrees
    result = compare({ENTRY: plain}, {ENTRY: plain, "Torch.abs.0.forward": plain})
    assert verdict(result, "Torch.abs.0.forward.output.0") == "unmatched"
    assert not result.agrees


def test_saved_values(compare):
    factors = {"a": 2.0, "b": 2.0, "c": 1.0, "loss_grad": 2.0}
    target = {f"{name}.0.debug": scaled(factor) for name, factor in factors.items()}
    result = compare(target, {name: tensor(X) for name in target})
    assert [verdict(result, name) for name in target] == ["error", "error", "pass", "error"]
    assert result.units[0].fault.entry == "a.0.debug"


@pytest.mark.parametrize(
    ("target", "golden", "expected"),
    [
        pytest.param([1 + 1j, 2 - 1j], [1 + 1j, 2 - 2j], "error", id="the imaginary part"),
        pytest.param([1.0, INF, 3.0], [1.0, -INF, 3.0], "error", id="infinities of other signs"),
        pytest.param([1.0, NAN, 3.0], [1.0, 2.0, 3.0], "error", id="NaN"),
        pytest.param([1.0, 2.0, 3.0], [1.0, NAN, 3.0], "error", id="NaN in the golden alone"),
        pytest.param([1.0, NAN, 3.0], [1.0, NAN, 3.0], "pass", id="NaN in both"),
        pytest.param([1, 2, 3], [1, 2, 4], "error", id="integers"),
        pytest.param(2.5, 2.0, "error", id="no dimension"),
        pytest.param(NAN, NAN, "pass", id="no dimension, NaN in both"),
        pytest.param(NAN, 1.0, "error", id="no dimension, NaN"),
        pytest.param(True, False, "error", id="no dimension, booleans"),
        pytest.param([1.01] * 45 + [1.0] * 55, [1.0] * 100, "error", id="45 of 100 elements off by 1 %"),
        pytest.param([3e38, 1.0], [-3e38, 1.0], "error", id="the sign of one element"),
        pytest.param([], [], "pass", id="nothing"),
    ],
)
def test_tensors(tmp_path, compare, target, golden, expected):
    records = []
    for side, values in (("target", target), ("golden", golden)):
        array = np.asarray(values)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        name = f"{ENTRY}.output.0.npy"
        (tmp_path / side / "dump_tensor_data").mkdir(parents=True)
        np.save(tmp_path / side / "dump_tensor_data" / name, array)
        shown = np.real(array).astype(np.float64) if array.size else [0.0]
        record = tensor(shown, dtype=f"torch.{array.dtype}", shape=list(array.shape), data_name=name)
        records.append(api(output=record))
    result = compare(*records, task="tensor", dump_data_dir=None)
    assert verdict(result) == expected
