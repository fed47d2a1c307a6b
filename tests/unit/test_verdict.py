"""Alignment, differences and verdicts, case by case."""

import pytest
from dumps import api, tensor, write_dump
from hypothesis import given, settings
from hypothesis import strategies as st
from row_findings import codes_of, has, of_row

from msprobe_core.compare import compare_dumps
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.row_codes import RowCode

NAN, INF = float("nan"), float("inf")
ENTRY = "Functional.linear.0.forward"
X = [[1.0, -2.0], [3.0, 4.0]]


def scaled(factor, values=X):
    return [[v * factor for v in row] for row in values]


@pytest.fixture
def compare(tmp_path):
    """Compare two records of one API, or two whole dumps."""

    def compare(target, golden, **header):
        sides = []
        for name, data in (("target", target), ("golden", golden)):
            data = data if ENTRY in data or "data" in data else {ENTRY: data}
            sides.append(write_dump(tmp_path / name, data.get("data", data), **header))
        return compare_dumps(*sides)

    return compare


def verdict(result, row=f"{ENTRY}.output.0"):
    return of_row(result.units[0].rows, row)


@pytest.mark.parametrize(
    ("target", "golden", "expected", "finding"),
    [
        (tensor(X), tensor(X), "pass", None),
        (tensor(scaled(1.0005)), tensor(X), "pass", None),
        (tensor(scaled(1.01)), tensor(X), "error", (RowCode.ERROR, {"limit": 0.001})),
        (tensor(scaled(3.0)), tensor(X), "error", (RowCode.ERROR, {"error": 2.0, "limit": 0.001})),
        (tensor(scaled(-1.0)), tensor(X), "error", (RowCode.ERROR, {})),
        (tensor(X, Max=400.0), tensor(X), "error", (RowCode.ERROR, {})),
        (tensor(X, Mean=-1.5), tensor(X), "error", (RowCode.ERROR, {})),
        (tensor([0.0, 1e-3]), tensor([0.0, 0.0]), "error", (RowCode.ERROR, {"error": INF})),
        (tensor([0.0, 1e-7]), tensor([0.0, 0.0]), "pass", (RowCode.ZERO, {})),
        (
            tensor(X, Max=None, Min=None, Mean=None, Norm=None),
            tensor(X),
            "warning",
            (RowCode.STATISTICS_ON_ONE_SIDE, {"side": "target"}),
        ),
        (
            tensor(X, Max=[1], Min=None, Mean=None, Norm=None),
            tensor(X),
            "warning",
            (RowCode.STATISTICS_ON_ONE_SIDE, {"side": "target"}),
        ),
        (
            tensor(X, dtype="torch.uint64", Max=2**64 - 1),
            tensor(X, dtype="torch.uint64", Max=2**64 - 2),
            "error",
            (RowCode.INTEGERS, {"golden": "18446744073709551614 and -2.0"}),
        ),
        (tensor([NAN, 1.0]), tensor([1.0, 1.0]), "error", (RowCode.NAN, {"target": "some", "golden": "none"})),
        (tensor([1.0, 1.0]), tensor([NAN, 1.0]), "error", (RowCode.NAN, {"target": "none", "golden": "some"})),
        (tensor(X, Mean="NaN"), tensor(X), "error", (RowCode.NAN, {"target": "some", "golden": "none"})),
        (
            tensor(X, Mean="nan", num_nan=0),
            tensor(X, num_nan=0),
            "error",
            (RowCode.NAN, {"target": "some", "golden": "0"}),
        ),
        (tensor(X), tensor(X, Norm="NaN"), "error", (RowCode.NAN, {"target": "none", "golden": "some"})),
        (tensor(X, Max="inf"), tensor(X), "error", (RowCode.INF, {"target_max": INF, "target_min": -2.0})),
        (
            tensor(X, Max=None, Min="-Infinity"),
            tensor(X),
            "error",
            (RowCode.INF, {"target_max": None, "target_min": -INF}),
        ),
        (tensor(X), tensor(X, Max="-inf", Min=None), "error", (RowCode.INF, {"golden_max": -INF, "golden_min": None})),
        (tensor([NAN, 1.0]), tensor([NAN, 1.0]), "pass", (RowCode.NAN_ON_BOTH, {})),
        (tensor([NAN] * 2, num_nan=2), tensor([NAN] * 2, num_nan=1), "error", (RowCode.NAN, {"target": "2"})),
        (tensor([INF, 1.0]), tensor([-INF, 1.0]), "error", (RowCode.INF, {})),
        (tensor([INF, 1.0]), tensor([2.0, 1.0]), "error", (RowCode.INF, {})),
        (tensor([INF, 1.0]), tensor([INF, 1.0]), "pass", None),
        (tensor(X, Norm="Infinity"), tensor(X), "pass", None),  # the sum overflowed in the tool, not the tensor
        (
            tensor(X, dtype="torch.bfloat16"),
            tensor(X),
            "pass",
            (RowCode.DTYPE, {"target": "torch.bfloat16", "golden": "torch.float32"}),
        ),
        (tensor(scaled(1.02), dtype="torch.bfloat16"), tensor(X), "pass", (RowCode.DTYPE, {})),
        (tensor(scaled(1.2), dtype="torch.bfloat16"), tensor(X), "error", (RowCode.ERROR, {"limit": 0.05})),
        (tensor(X, dtype="Float32"), tensor(X), "pass", (RowCode.DTYPE, {"target": "Float32"})),
        (tensor([1, 2], dtype="torch.int64"), tensor([1, 2], dtype="torch.int32"), "pass", (RowCode.DTYPE, {})),
        (tensor([1, 3], dtype="torch.int64"), tensor([1, 2], dtype="torch.int64"), "error", (RowCode.NOT_EQUAL, {})),
        (tensor([1, 2], dtype="torch.int64"), tensor([1, 2]), "warning", (RowCode.DTYPE_KIND, {})),
        (
            tensor(X, shape=[4]),
            tensor(X, shape=[2, 2]),
            "error",
            (RowCode.SHAPE, {"target": "[4]", "golden": "[2, 2]"}),
        ),
        (tensor(X, requires_grad=False), tensor(X), "warning", (RowCode.REQUIRES_GRAD, {})),
        (None, tensor(X), "error", (RowCode.KIND, {"target": "nothing", "golden": "a tensor"})),
        (
            tensor(X),
            {"type": "int", "value": 3},
            "error",
            (RowCode.KIND_VALUE_IN_GOLDEN, {"target": "a tensor", "value": "3"}),
        ),
        (None, None, "pass", None),
    ],
)
def test_values(compare, target, golden, expected, finding):
    # Numbers and integers share the file with a plain float32 tensor, so that the limit is float32's.
    result = compare(api(tensor(X), output=target), api(tensor(X), output=golden))
    own, found = verdict(result)
    assert own == expected
    assert (finding is None and not found) or has(found, finding[0], **finding[1])
    assert result.agrees == (expected != "error")


@pytest.mark.parametrize(
    ("kind", "target", "golden", "expected"),
    [
        ("int", 3, 3, "pass"), ("int", 3, 4, "error"), ("bool", True, False, "error"), ("str", "sum", "mean", "error"),
        ("float", 1e-6, 1e-5, "error"), ("float", 0.1, 0.1 + 1e-12, "pass"), ("float", "NaN", "NaN", "pass"),
        ("float", "Infinity", "Infinity", "pass"), ("float", "Infinity", 1.0, "error"),
        ("str", "npu:0", "cuda:3", "pass"), ("torch.device", "cpu:None", "npu:0", "pass"),
        ("torch.dtype", "torch.float32", "torch.bfloat16", "pass"),
        ("float", -3.4028234663852886e38, -3.3895313892515355e38, "pass"), ("int", 1, 2, "error"),
        ("int", 1_000_000, 1_000_001, "error"), ("float", 1_000_000.5, 1_000_000.6, "pass"),
    ],
)  # fmt: skip
def test_arguments(compare, kind, target, golden, expected):
    sides = [api(tensor(X), {"type": kind, "value": v}, output=tensor(X)) for v in (target, golden)]
    found, _ = verdict(compare(*sides), f"{ENTRY}.input.1")
    assert found == expected


def test_an_unmatched_row_never_passes(compare):
    extra = api(tensor(X), tensor(X), output=tensor(X))
    result = compare(extra, api(tensor(X), output=tensor(X)))
    assert verdict(result, f"{ENTRY}.input.1") == (
        "unmatched",
        [Finding(RowCode.LONE, Level.UNMATCHED, {"side": "target"})],
    )
    assert not result.agrees
    result = compare(api(tensor(X), output=tensor(X)), extra)
    assert verdict(result, f"{ENTRY}.input.1") == (
        "unmatched",
        [Finding(RowCode.LONE, Level.UNMATCHED, {"side": "golden"})],
    )
    assert result.units[0].counts["only golden"] == 1


@pytest.mark.parametrize("checksums", [{}, {"md5": "0000000a"}])
def test_uninitialised_memory_is_not_judged(compare, checksums):
    def dump(factor, output):
        other = {key: f"{int(value, 16) + int(factor):08x}" for key, value in checksums.items()}
        return {"data": {
            "Torch.empty.0.forward": api(output=tensor(scaled(factor), **other)),
            ENTRY: api(tensor(X, **checksums), output=tensor(scaled(output), **checksums)),
        }}  # fmt: skip

    result = compare(dump(7.0, 1.0), dump(1.0, 1.0))
    assert result.agrees
    assert result.units[0].first_difference is None
    assert compare(dump(7.0, 1.5), dump(1.0, 1.0)).units[0].fault.entry == ENTRY


def test_values_without_statistics_are_counted_and_said(compare):
    nothing = tensor(X, Max=None, Min=None, Mean=None, Norm=None, dtype="torch.float8_e4m3fn")
    result = compare(api(tensor(X), nothing, output=tensor(X)), api(tensor(X), nothing, output=tensor(X)))
    assert result.agrees
    assert verdict(result, f"{ENTRY}.input.1")[1] == [Finding(RowCode.NO_STATISTICS)]
    assert result.units[0].notes == [
        "tensors that could not be compared, because one side or both have no statistics of them: 1"
    ]


def test_a_call_without_values_that_one_side_lacks(compare):
    both = {ENTRY: api(output=tensor(X)), "Torch.seed.0.forward": {"input_args": [], "input_kwargs": {}, "output": []}}
    result = compare({"data": {**both, "Torch.x.0.forward": {"input_args": []}}}, {"data": both})
    assert (result.agrees, result.units[0].lone_call.entry) == (False, "Torch.x.0.forward")
    assert result.units[0].rows.height == 2  # the call without values that both sides have is no row


def test_rows_of_both_sides_stand_in_execution_order(compare):
    def dump(*names):
        return {"data": {f"Tensor.{n}.0.forward": api(output=tensor(X)) for n in names}}

    result = compare(dump("c", "x", "a", "b"), dump("g", "c", "h", "i", "b", "a", "j"))
    entries = result.units[0].rows["entry"].to_list()
    assert [e.split(".")[1] for e in entries] == ["g", "c", "h", "i", "x", "a", "j", "b"]


@given(st.lists(st.sampled_from("abcdefgh"), unique=True), st.lists(st.sampled_from("abcdefgh"), unique=True))
@settings(max_examples=60, deadline=None)
def test_alignment_loses_and_doubles_nothing(tmp_path_factory, target, golden):
    if not set(target) & set(golden):
        return
    directory = tmp_path_factory.mktemp("align")
    sides = [
        write_dump(directory / side, {f"Tensor.{n}.0.forward": api(output=tensor(X)) for n in names})
        for side, names in (("target", target), ("golden", golden))
    ]
    rows = compare_dumps(*sides).units[0].rows
    names = [entry.split(".")[1] for entry in rows["entry"]]
    assert sorted(names) == sorted(set(target) | set(golden))
    assert [n for n in names if n in target] == target
    matches = dict(zip(names, rows["match"], strict=True))
    for name, match in matches.items():
        assert match == (
            "both" if name in target and name in golden else "only target" if name in target else "only golden"
        )


def chain(*factors, weight=1.0, **parameters):
    """Return three calls, each getting what the last one gave."""
    data, value = {}, X
    for i, factor in enumerate(factors):
        record = api(tensor(value), output=tensor(scaled(factor, value)))
        if i == 1:
            record["parameters"] = {"weight": tensor(scaled(weight))}
        data[f"Module.m{i}.M.forward.0"] = record | parameters
        value = scaled(factor, value)
    return {"data": data}


def test_the_first_fault_is_where_inputs_agree_and_the_output_does_not(compare):
    fault = compare(chain(2, 2.5, 2), chain(2, 2, 2)).units[0].fault
    assert (fault.entry, fault.is_culprit, fault.parts) == ("Module.m1.M.forward.0", True, ["outputs"])
    assert fault.input_error == 0.0
    assert fault.output_error == pytest.approx(0.25)
    assert [row for row, _ in fault.findings] == ["Module.m1.M.forward.0.output.0"]


def test_a_wrong_parameter_is_named_as_such(compare):
    fault = compare(chain(2, 2.5, 2, weight=3.0), chain(2, 2, 2)).units[0].fault
    assert (fault.entry, fault.parts) == ("Module.m1.M.forward.0", ["parameters", "outputs"])


def test_a_fault_that_came_from_outside_is_said_to(compare):
    target = {"data": {"Module.m.M.forward.0": api(tensor(scaled(2.0)), output=tensor(scaled(4.0)))}}
    golden = {"data": {"Module.m.M.forward.0": api(tensor(X), output=tensor(scaled(2.0)))}}
    fault = compare(target, golden).units[0].fault
    assert (fault.entry, fault.is_culprit) == ("Module.m.M.forward.0", False)


def test_an_extra_call_that_explains_nothing_does_not_hide_the_fault(compare):
    target = chain(2, 2.5, 2)
    target["data"] = {"Tensor.abs.0.forward": api(tensor(X), output=tensor(X)), **target["data"]}
    unit = compare(target, chain(2, 2, 2)).units[0]
    assert (unit.lone_call.entry, unit.lone_call.only_on) == ("Tensor.abs.0.forward", "target")
    assert unit.first_fault is unit.fault
    assert unit.fault.entry == "Module.m1.M.forward.0"  # its input agrees, whatever the extra call has made


def test_an_extra_call_before_a_wrong_input_is_the_first_fault(compare):
    target, golden = ({"Module.m1.M.forward.0": api(tensor(scaled(f)), output=tensor(scaled(f)))} for f in (2.0, 1.0))
    target = {"Tensor.abs.0.forward": api(tensor(X), output=tensor(X)), **target}
    unit = compare({"data": target}, {"data": golden}).units[0]
    assert unit.first_fault is unit.lone_call
    assert (unit.first_fault.entry, unit.first_fault.only_on) == ("Tensor.abs.0.forward", "target")
    assert unit.fault.entry == "Module.m1.M.forward.0"


def test_a_small_difference_between_equal_inputs_comes_first(compare):
    """Below the limit, but far beyond rounding; what is over the limit comes later and only amplifies it."""
    fault = compare(chain(2, 2 + 1e-3, 2), chain(2, 2, 2 * (1 + 1e-2))).units[0].fault
    assert (fault.entry, fault.is_culprit, fault.parts) == ("Module.m1.M.forward.0", True, ["outputs"])
    assert fault.findings[0][1].code is RowCode.WITHIN_LIMIT
    assert fault.findings[0][1].fields["limit"] == 0.001


def test_a_value_made_by_what_is_not_recorded_is_put_down_to_the_module_around_it(tmp_path):
    def dump(factor):
        return {
            "Functional.silu.0.forward": api(tensor(scaled(factor)), output=tensor(scaled(factor * 2))),
            "Module.act.SiLU.forward.0": api(tensor(X), output=tensor(scaled(factor * 2))),
            "Module.M.forward.0": api(tensor(X), output=tensor(scaled(factor * 2))),
        }

    parents = {
        "Functional.silu.0.forward": "Module.act.SiLU.forward.0",
        "Module.act.SiLU.forward.0": "Module.M.forward.0",
    }
    target = write_dump(tmp_path / "target", dump(1.5), parents=parents)
    golden = write_dump(tmp_path / "golden", dump(1.0), parents=parents)
    fault = compare_dumps(target, golden).units[0].fault
    assert (fault.entry, fault.parent, fault.is_culprit) == ("Module.act.SiLU.forward.0", "Module.M.forward.0", True)


def test_a_difference_within_the_limit_is_mentioned(compare):
    unit = compare(chain(2, 2 + 1e-6, 2), chain(2, 2, 2)).units[0]
    assert (unit.agrees, unit.fault) == (True, None)
    assert unit.first_difference == "Module.m1.M.forward.0.output.0"
    assert compare(chain(2, 2, 2), chain(2, 2, 2)).units[0].first_difference is None


def test_what_follows_bfloat16_is_judged_as_bfloat16(compare):
    def dump(factor):
        half = tensor(X, dtype="torch.bfloat16")
        return {"data": {
            "Tensor.a.0.forward": api(tensor([5.0, 7.0]), output=tensor(scaled(factor))),
            "Tensor.b.0.forward": api(output=half),
            "Tensor.c.0.forward": api(tensor(X), output=tensor(scaled(factor, [[8.0]]))),
            "Tensor.d.0.forward": api(tensor([5.0, 7.0]), output=tensor(scaled(factor, [[9.0]]))),
        }}  # fmt: skip

    result = compare(dump(1.01), dump(1.0))
    for call, expected in (("a", "error"), ("c", "pass"), ("d", "error")):
        assert verdict(result, f"Tensor.{call}.0.forward.output.0")[0] == expected


def test_gradients_that_are_zero_but_for_rounding_are_not_compared(compare):
    def dump(noise):
        received, bias = tensor(X), tensor([noise, -noise])
        return {"data": {
            "Module.k.Linear.backward.0": {"input": [received], "output": [tensor(X)]},
            "Module.k.Linear.parameters_grad.0": {"bias": [bias], "weight": [tensor(X)]},
        }}  # fmt: skip

    row = "Module.k.Linear.parameters_grad.0.bias"
    own, found = verdict(compare(dump(3e-8), dump(1e-9)), row)
    assert (own, codes_of(found)[0]) == ("pass", RowCode.VANISHING)
    assert verdict(compare(dump(3e-1), dump(1e-9)), row)[0] == "error"
    assert verdict(compare(dump(3e-2), dump(1e-2)), row)[0] == "error"
    assert verdict(compare(dump(9e-4), dump(3.6e-6)), row)[0] == "error"


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float8_e5m2", "torch.float32"])
def test_a_gradient_that_is_lost_is_an_error(compare, dtype):
    """Of a weight or an input there is no telling how large it should be beside the gradient it is computed from."""

    def dump(value):
        received, lost = tensor(X, dtype=dtype), tensor([[value, value]], dtype=dtype)
        return {"data": {
            "Module.k.Linear.backward.0": {"input": [received], "output": [lost]},
            "Module.k.Linear.parameters_grad.0": {"weight": [lost]},
        }}  # fmt: skip

    result = compare(dump(0.0), dump(0.04))
    assert verdict(result, "Module.k.Linear.parameters_grad.0.weight")[0] == "error"
    assert verdict(result, "Module.k.Linear.backward.0.output.0")[0] == "error"


def test_the_first_fault_passes_over_rounding_noise(compare):
    def dump(noise, factor):
        return {"data": {
            "Module.k.Linear.backward.0": {"input": [tensor(X)], "output": [None, tensor([noise, -noise])]},
            "Module.q.Linear.backward.0": {"input": [tensor(X)], "output": [tensor(scaled(factor))]},
        }}  # fmt: skip

    assert compare(dump(1e-8, 1.5), dump(3e-8, 1.0)).units[0].fault.entry == "Module.q.Linear.backward.0"


def test_an_argument_that_differs_and_matters_comes_first(compare):
    """In a pair of different precisions inputs are never equal, so an argument tells more than its effect."""

    def dump(noise, argument, *, effect=9):
        return {"data": {
            "Tensor.a.0.forward": api(tensor(scaled(1 + noise)), argument, output=tensor(scaled(1 + effect * noise))),
            "Tensor.b.0.forward": api(tensor(scaled(1 + 9 * noise)), output=tensor(scaled(1 + 50 * noise))),
        }}  # fmt: skip

    one, other = ({"type": "float", "value": value} for value in (0.1, 0.2))
    fault = compare(dump(1e-4, other), dump(0.0, one)).units[0].fault
    assert (fault.entry, fault.is_culprit, fault.parts) == ("Tensor.a.0.forward", True, ["arguments", "outputs"])
    fault = compare(dump(1e-4, None), dump(0.0, one)).units[0].fault
    assert (fault.entry, fault.is_culprit) == ("Tensor.a.0.forward", True)
    # One that changes nothing is an error of its own, but not where the two part.
    fault = compare(dump(1e-4, other, effect=0), dump(0.0, one)).units[0].fault
    assert fault.entry == "Tensor.b.0.forward"


def test_a_circle_in_the_nesting_comes_to_an_end(tmp_path):
    parents = {ENTRY: "Module.m.M.forward.0", "Module.m.M.forward.0": "Module.m.M.forward.0"}
    target = write_dump(tmp_path / "t", {ENTRY: api(tensor(scaled(2.0)), output=tensor(X))}, parents=parents)
    golden = write_dump(tmp_path / "g", {ENTRY: api(tensor(X), output=tensor(X))}, parents=parents)
    assert compare_dumps(target, golden).units[0].fault.entry == ENTRY


def test_checksums_decide_in_checksum_mode(compare):
    target, golden = (api(tensor(X, md5="00000001"), output=tensor(X, md5=m)) for m in ("0000000a", "0000000b"))
    result = compare(target, golden)
    assert result.units[0].mode.value == "md5"
    within = Finding(RowCode.CHECKSUM_ALONE, Level.ERROR, {"error": 0.0, "limit": 0.001})
    assert verdict(result) == ("error", [within])
    assert verdict(result, f"{ENTRY}.input.0")[0] == "pass"
    assert result.units[0].fault.is_culprit


def test_checksums_on_one_side_fall_back_to_statistics(compare):
    result = compare(api(output=tensor(X, md5="0000000a")), api(output=tensor(X)))
    assert result.units[0].mode.value == "statistics"
    assert result.agrees


def test_ranks_are_paired_by_number(tmp_path):
    good, bad = api(tensor(X), output=tensor(X)), api(tensor(X), output=tensor(scaled(2.0)))
    for side in ("target", "golden"):
        for rank in (0, 2, 10):
            write_dump(tmp_path / side / f"rank{rank}", {ENTRY: bad if (side, rank) == ("target", 10) else good})
    write_dump(tmp_path / "golden" / "rank3", {ENTRY: good})
    result = compare_dumps(tmp_path / "target", tmp_path / "golden")
    assert [(unit.label, unit.agrees) for unit in result.units] == [("rank0", True), ("rank2", True), ("rank10", False)]
    assert result.missing == [f"rank3 is in {tmp_path / 'golden'} only"]
    assert not result.agrees


def test_one_process_on_either_side_belongs_together(tmp_path):
    write_dump(tmp_path / "target" / "proc11", {ENTRY: api(output=tensor(X))})
    write_dump(tmp_path / "golden" / "rank0", {ENTRY: api(output=tensor(X))})
    assert compare_dumps(tmp_path / "target", tmp_path / "golden").agrees


def test_what_cannot_be_compared_is_said(tmp_path):
    one = write_dump(tmp_path / "one" / "rank0", {ENTRY: api(output=tensor(X))})
    other = write_dump(tmp_path / "other" / "rank1", {"Torch.mm.0.forward": api(output=tensor(X))})
    write_dump(tmp_path / "many" / "proc1", {ENTRY: api(output=tensor(X))})
    write_dump(tmp_path / "many" / "proc2", {ENTRY: api(output=tensor(X))})
    write_dump(tmp_path / "other" / "rank4", {ENTRY: api(output=tensor(X))})
    structure = write_dump(tmp_path / "structure", {}, task="structure")
    with pytest.raises(CompareError, match="have no row in common"):
        compare_dumps(one, other)
    with pytest.raises(CompareError, match=r"is one dump and .* is not"):
        compare_dumps(one, tmp_path / "other")
    with pytest.raises(CompareError, match="does not exist"):
        compare_dumps(one, tmp_path / "nowhere")
    with pytest.raises(CompareError, match="holds proc1, proc2 without a rank"):
        compare_dumps(tmp_path / "many", tmp_path / "many")
    write_dump(tmp_path / "fifth" / "rank5", {ENTRY: api(output=tensor(X))})
    write_dump(tmp_path / "fifth" / "rank6", {ENTRY: api(output=tensor(X))})
    with pytest.raises(CompareError, match="have no rank in common"):
        compare_dumps(tmp_path / "fifth", tmp_path / "other")
    with pytest.raises(CompareError, match=r"holds neither values nor calls \(task 'structure'\)"):
        compare_dumps(structure, one)
    with pytest.raises(DumpError, match="holds no dump"):
        compare_dumps(tmp_path, tmp_path)


def test_exclusive_ors_are_compared_without_statistics(compare):
    def leaf(checksum):
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "md5": checksum, "requires_grad": True}

    one, other = "0x82f0e339054710f3", "0x82f0e339054710f4"
    result = compare(api(leaf(one), output=leaf(one)), api(leaf(one), output=leaf(other)))
    assert result.units[0].mode.value == "md5"
    assert verdict(result) == ("error", [Finding(RowCode.CHECKSUM, Level.ERROR)])
    assert verdict(result, f"{ENTRY}.input.0") == ("pass", [])
    fault = result.units[0].fault
    assert (fault.entry, fault.is_culprit, fault.parts) == (ENTRY, True, ["outputs"])
    assert compare(api(leaf(one), output=leaf(one)), api(leaf(one), output=leaf(one))).agrees
    with pytest.raises(CompareError, match="keeps checksums of summary_mode xor of each tensor and "):
        compare(api(output=leaf(one)), api(output=tensor(X, md5="0000000a")))
