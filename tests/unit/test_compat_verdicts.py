"""What other tools' tables say of a row: their verdicts, colours and advice, case by case as they were observed."""

import numpy as np
import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare.align import align
from msprobe_core.compare.tensor_pass import compare_tensors
from msprobe_core.compat.advice import advise
from msprobe_core.compat.highlight import add_highlights
from msprobe_core.compat.verdicts import compat_a, compat_c
from msprobe_core.judge import statistics_columns
from msprobe_core.judge.verdict import judge
from msprobe_core.store.json_reader import read_json_dump

NAN, INF = float("nan"), float("inf")
ENTRY = "Functional.linear.0.forward"
X = [[1.0, -2.0], [3.0, 4.0]]

NAN_TEXT = "error: There is nan/inf/-inf in the maximum or minimum value of NPU."
NORM_TEXT = "error: The NormRelativeErr of output is greater than 0.5."
RATIO_TEXT = "error: The input/parameters of One Thousandth Err Ratio > 0.9 while the output < 0.6."
GRAD_TEXT = "error: The Required_Grad of NPU and Bench are inconsistent"
SCALAR_TEXT = "error: The scalar parameters of NPU and Bench are inconsistent."
DTYPE_TEXT = "error: The dtype of NPU and Bench are inconsistent."
SHAPE_TEXT = "error: The shape of NPU and Bench are inconsistent."
GREW_TEXT = "warning: The norm relative error of output is 10 times that of input."
GREW_BOTH = (
    "maximum absolute error of both input/parameters and output exceed 1, "
    "with the output larger by an order of magnitude"
)
COSINE_TEXT = "warning: The input/parameters of Cosine > 0.9, and input/parameters - output > 0.1"


@pytest.fixture
def judged(tmp_path):
    def judged(target, golden, *, by_checksum=False):
        dumps = [
            read_json_dump(write_dump(tmp_path / side, data if "." in next(iter(data)) else {ENTRY: data}))
            for side, data in (("target", target), ("golden", golden))
        ]
        return judge(statistics_columns.add_statistics(align(*dumps).rows), by_checksum=by_checksum)

    return judged


def of_row(rows, columns, name=f"{ENTRY}.output.0"):
    names = rows.select(name=pl.coalesce("name_target", "name_golden"))["name"].to_list()
    return columns.row(names.index(name))


def scaled(factor, **fields):
    return tensor([[v * factor for v in row] for row in X], **fields)


def pair(given, made, **fields):
    """Return both sides of a call whose input and output norms differ by these shares."""
    sides = []
    for one, other in ((1 + given, 1 + made), (1.0, 1.0)):
        sides.append(api(tensor(X, Norm=one), output=tensor(X, Norm=other)))
    return sides


class TestGenerationC:
    @pytest.mark.parametrize(
        ("given", "made", "expected"),
        [
            (0.0, 0.0, []), (0.0, 0.1001, [GREW_TEXT]), (0.0, 0.11, [GREW_TEXT]), (0.0, 0.09, []),
            (1e-3, 1.01e-2, [GREW_TEXT]), (1e-7, 1.2e-6, [GREW_TEXT]), (0.05, 0.6, [NORM_TEXT, GREW_TEXT]),
            (0.09, 0.51, [NORM_TEXT]), (0.11, 0.99, []),
        ],
    )  # fmt: skip
    def test_norms(self, judged, given, made, expected):
        rows = judged(*pair(given, made))
        found = of_row(rows, compat_c(rows))
        level = "error" if NORM_TEXT in expected else "warning" if expected else "pass"
        assert found == (level, expected)

    @pytest.mark.parametrize(
        ("target", "golden", "expected"),
        [
            (tensor(X, Max=400.0), tensor(X), []),
            (tensor(X, Mean=-1.5), tensor(X), []),
            (tensor([1.0, 0.0]), tensor([0.0, 0.0]), [NORM_TEXT]),
            (tensor([NAN, 1.0]), tensor([1.0, 1.0]), [NAN_TEXT]),
            (tensor([1.0, 1.0]), tensor([NAN, 1.0]), []),
            (tensor([NAN, 1.0]), tensor([NAN, 1.0]), []),
            (tensor(X, Max="-Infinity"), tensor(X, Max="Infinity"), []),
            (tensor(X, Mean="NaN"), tensor(X), []),
            (tensor(X, requires_grad=False), tensor(X), [GRAD_TEXT]),
            (tensor(X, dtype="torch.float16"), tensor(X), [DTYPE_TEXT]),
            (tensor([1, 2], dtype="torch.int32"), tensor([1, 2], dtype="torch.int64"), []),
            (tensor([1, 2], dtype="torch.float8_e4m3fn"), tensor([1, 9]), []),
            (tensor(X, shape=[4]), tensor(X), [SHAPE_TEXT]),
            (None, None, []),
            (None, tensor(X), []),
        ],
    )  # fmt: skip
    def test_values(self, judged, target, golden, expected):
        rows = judged(api(tensor(X), output=target), api(tensor(X), output=golden))
        result, messages = of_row(rows, compat_c(rows))
        assert (result, messages) == ("error" if expected else "pass", expected)

    @pytest.mark.parametrize(
        ("kind", "target", "golden", "expected"),
        [("bool", True, False, "error"), ("int", 3, 4, "error"), ("slice", [0], [1], "pass"),
         ("torch.Size", [2, 3], [2, 3], "pass"), ("torch.ProcessGroup", [0], [1], "pass"),
         ("str", "sum", "mean", "error"), ("str", "npu:0", "cuda:0", "error"), ("str", "sum", "sum", "pass")],
    )  # fmt: skip
    def test_arguments(self, judged, kind, target, golden, expected):
        sides = [api(tensor(X), {"type": kind, "value": v}, output=tensor(X)) for v in (target, golden)]
        rows = judged(*sides)
        messages = [] if expected == "pass" else [SCALAR_TEXT]
        assert of_row(rows, compat_c(rows), f"{ENTRY}.input.1") == (expected, messages)
        assert of_row(rows, compat_c(rows)) == ("pass", [])

    def test_the_shape_of_an_argument(self, judged):
        sides = [api(tensor(X), {"type": "torch.Size", "value": v}, output=tensor(X)) for v in ([2, 3], [2, 4])]
        rows = judged(*sides)
        assert of_row(rows, compat_c(rows), f"{ENTRY}.input.1") == ("error", [SHAPE_TEXT])

    def test_an_output_that_is_no_tensor(self, judged):
        sides = [api(tensor(X), output={"type": "int", "value": v}) for v in (3, 4)]
        rows = judged(*sides)
        assert of_row(rows, compat_c(rows)) == ("warning", [GREW_TEXT])

    @pytest.mark.parametrize("given", [[], [{"type": "bool", "value": True}], [None]], ids=["nothing", "bool", "None"])
    def test_a_call_without_tensors_counts_as_given_the_same(self, judged, given):
        rows = judged(*[{"input_args": given, "output": [scaled(f)]} for f in (9.0, 1.0)])
        assert of_row(rows, compat_c(rows)) == ("error", [NORM_TEXT, GREW_TEXT])

    def test_a_call_without_arguments_is_never_exempt(self, judged):
        entry = "Torch.empty.0.forward"
        rows = judged(*[{entry: {"input_args": [], "output": [scaled(f)]}} for f in (9.0, 1.0)])
        assert of_row(rows, compat_c(rows), f"{entry}.output.0") == ("error", [NORM_TEXT, GREW_TEXT])

    def test_outputs_of_what_receives_are_not_held_against_its_buffers(self, judged):
        entry = "Distributed.all_to_all_single.0.forward"
        rows = judged(*[{entry: api(tensor(X), output=scaled(f))} for f in (9.0, 1.0)])
        assert of_row(rows, compat_c(rows), f"{entry}.output.0") == ("pass", [])

    def test_inputs_that_were_0_say_nothing_of_the_output(self, judged):
        rows = judged(*[api(scaled(f), tensor(X), output=scaled(1 + f)) for f in (1.0, 0.0)])
        assert of_row(rows, compat_c(rows)) == ("error", [NORM_TEXT, GREW_TEXT])

    def test_a_wrong_weight_hides_its_consequence(self, judged):
        sides = [api(tensor(X), scaled(f), output=scaled(f)) for f in (3.0, 1.0)]
        rows = judged(*sides)
        assert compat_c(rows)["result"].to_list() == ["pass"] * 3
        assert "error" in rows["verdict"].to_list()  # ours does not

    def test_the_second_of_two_outputs(self, judged):
        sides = [{"input_args": [tensor(X)], "output": [tensor(X), scaled(f)]} for f in (3.0, 1.0)]
        rows = judged(*sides)
        verdicts = compat_c(rows)
        assert of_row(rows, verdicts) == ("warning", [GREW_TEXT])
        assert of_row(rows, verdicts, f"{ENTRY}.output.1") == ("error", [NORM_TEXT])

    @pytest.mark.parametrize(
        ("entry", "row", "expected"),
        [("Tensor.to.0.forward", "output.0", "pass"), ("Tensor.__setitem__.0.forward", "output.0", "pass"),
         ("Tensor.setitem.0.forward", "output.0", "error"), ("Torch.empty_like.2.forward", "output.0", "pass"),
         ("Distributed.all_to_all_single.0.forward", "input.0", "pass"),
         ("Distributed.all_to_all_single.0.forward", "output.0", "error"),
         ("Distributed.all_reduce.0.forward", "input.0", "error")],
    )  # fmt: skip
    def test_exempt_apis(self, judged, entry, row, expected):
        bad = tensor([NAN, 1.0])
        good = tensor([1.0, 1.0])
        rows = judged({entry: api(bad, output=bad)}, {entry: api(good, output=good)})
        assert of_row(rows, compat_c(rows), f"{entry}.{row}")[0] == expected

    def test_rows_of_one_side(self, judged):
        extra, plain = api(tensor(X), tensor(X), output=tensor(X)), api(tensor(X), output=tensor(X))
        for sides in ((extra, plain), (plain, extra)):
            assert compat_c(judged(*sides))["result"].to_list() == ["pass"] * 3

    def test_saved_values_never_fail(self, judged):
        rows = judged({"loss.0.debug": scaled(2.0)}, {"loss.0.debug": scaled(1.0)})
        assert compat_c(rows)["result"].to_list() == ["pass"]
        assert rows["verdict"].to_list() == ["error"]  # ours do

    def test_checksums(self, judged):
        def side(given, made, **fields):
            return api(tensor(X, md5=given), {"type": "int", "value": 3}, output=tensor(X, md5=made, **fields))

        rows = judged(side("0000000a", "0000000b"), side("0000000a", "0000000c"), by_checksum=True)
        verdicts = compat_c(rows, by_checksum=True)
        assert verdicts["result"].to_list() == ["pass", "pass", "error"]
        assert of_row(rows, verdicts)[1] == ["error: The CRC-32 value of NPU differs from that of the bench."]
        rows = judged(api(tensor(X, md5="0000000a"), None, output=None), api(output=None), by_checksum=True)
        verdicts = compat_c(rows, by_checksum=True)
        assert of_row(rows, verdicts, f"{ENTRY}.input.0") == (
            "warning",
            ["warning: The parameter of NPU does not match the bench."],
        )
        assert of_row(rows, verdicts, f"{ENTRY}.input.1")[0] == "pass"
        assert compat_a(rows, by_checksum=True)["result"].to_list()[0] == "Different"


def with_tensors(judged, target, golden, **fields):
    """Return the rows of a call with equal inputs, and the metrics of its outputs."""
    same = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    kinds = {"bool": "bool", "int64": "int64", "float16": "float16", "float64": "float64"}
    sides = [
        api(tensor(same), output=tensor(np.real(v), dtype=f"torch.{kinds.get(str(v.dtype), 'float32')}"))
        for v in (target, golden)
    ]
    rows = judged(*sides)
    own = [compare_tensors(same, same), compare_tensors(target, golden)]
    names = ("cosine", "euclidean", "largest_abs", "largest_rel", "within_1e3", "within_5e3", "status")
    return rows.with_columns(pl.Series(n, [getattr(m, n) for m in own], strict=False) for n in names)


ONE = np.array([1, 2, 3, 4], np.float32)
HUNDRED = np.arange(1, 101, dtype=np.float32)
F32 = np.float32


def first_times(count):
    values = HUNDRED.copy()
    values[:count] *= F32(1.01)
    return values


@pytest.mark.parametrize(
    ("target", "golden", "texts"),
    [
        (ONE, ONE, []),
        (2 * ONE, ONE, [RATIO_TEXT]),
        (-ONE[:3], ONE[:3], [RATIO_TEXT, COSINE_TEXT]),
        (np.array([1, 0], F32), np.array([0, 1], F32), [RATIO_TEXT, COSINE_TEXT]),
        (0 * ONE, 0 * ONE, []),
        (0 * ONE, ONE / ONE, [RATIO_TEXT]),
        (ONE / ONE, 0 * ONE, [RATIO_TEXT]),
        (np.array([1, 1e-3, 3, 4], F32), np.array([1, 0, 3, 4], F32), []),
        (np.array([1.004, 2.008, 3, 4], F32), ONE, []),
        (np.array([1, NAN, 3], F32), np.array([1, NAN, 3], F32), []),
        (np.array([1, NAN, 3], F32), ONE[:3], [NAN_TEXT]),
        (np.array([1, INF, 3], F32), np.array([1, INF, 3.5], F32), []),
        (np.array([1, INF, 3], F32), np.array([1, -INF, 3], F32), []),
        (np.array(2.5, F32), np.array(2.0, F32), []),
        (np.array([2.5], F32), np.array([2.0], F32), []),
        (ONE[None], ONE, [SHAPE_TEXT]),
        (ONE, ONE.reshape(2, 2), [SHAPE_TEXT]),
        (np.array([1, 2, 3]), np.array([1, 2, 4]), []),
        (np.array([True, False, True]), np.array([True, True, True]), [COSINE_TEXT]),
        (ONE.astype(np.float16), ONE, [DTYPE_TEXT]),
        (np.array([1 + 1j, 2 - 1j]), np.array([1 + 1j, 2 - 2j]), []),
        (np.array([1.000000001, 2]), np.array([1.0, 2]), []),
        (np.array([3e38, 1], F32), np.array([-3e38, 1], F32), [COSINE_TEXT]),
        (first_times(45), HUNDRED, []),
        (first_times(95), HUNDRED, [RATIO_TEXT]),
    ],
)
def test_tensors_in_generation_c(judged, target, golden, texts):
    rows = with_tensors(judged, target, golden)
    assert of_row(rows, compat_c(rows)) == (
        "error" if any(t.startswith("error") for t in texts) else "warning" if texts else "pass",
        texts,
    )


class TestGenerationA:
    @pytest.mark.parametrize(
        ("cosine", "largest", "status", "expected"),
        [
            (0.95, 0.002, "", "No"), (0.85, 2.0, "", "No"), (0.95, 0.001, "", "Yes"), (0.9999, 1.5, "", "No"),
            (0.85, 1e-4, "", "No"), (1.0, 0.0, "", "Yes"), (None, None, "shape unmatched", "Unmatched"),
            (None, None, "N/A", "No"), (None, 0.5, "unsupported", "None"), (NAN, 0.5, "", "No"),
        ],
    )  # fmt: skip
    def test_accuracy(self, judged, cosine, largest, status, expected):
        rows = judged(api(output=tensor(X)), api(output=tensor(X))).with_columns(
            cosine=pl.lit(cosine, pl.Float64),
            largest_abs=pl.lit(largest, pl.Float64),
            within_1e3=pl.lit(None, pl.Float64),
            status=pl.lit(status),
        )
        assert compat_a(rows)["result"].to_list() == [expected]

    @pytest.mark.parametrize(
        ("target", "golden", "expected"),
        [
            (tensor(X), tensor(X), ""),
            (scaled(1.9), tensor(X), ""),
            (scaled(2.1), tensor(X), "Warning"),
            (tensor(X, Mean=-1.5), tensor(X), "Warning"),
            (tensor([0.0, 1e-11]), tensor([0.0, 0.0]), ""),
            (tensor([NAN, 1.0]), tensor([1.0, 1.0]), ""),
            (None, tensor(X), ""),
        ],
    )
    def test_statistics(self, judged, target, golden, expected):
        rows = judged(api(output=target), api(output=golden))
        text = ["Need double check api accuracy."] if expected else []
        assert compat_a(rows).row(0) == (expected, text)


class TestHighlights:
    """Colours of the statistics, then those of tensors."""

    @pytest.mark.parametrize(
        ("given", "made", "colour", "texts"),
        [
            ({}, {}, None, []),
            ({}, {"Max": "NaN"}, "red", ["maximum or minimum is nan, -inf, or inf"]),
            ({}, {"Min": "-Infinity"}, "red", ["maximum or minimum is nan, -inf, or inf"]),
            ({}, {"Max": 2e10}, "red", ["maximum absolute error exceeds 1e+10"]),
            ({}, {"Max": 6.5}, "red", ["maximum relative error exceeds 0.5"]),
            ({}, {"Max": 4.6}, "yellow",
             ["The output's maximum relative error exceeds 0.1, while the input/parameter's is below 0.01"]),
            ({"Max": 4.1}, {"Max": 4.6}, None, []),
            ({"Max": 5.5}, {"Max": 20.0}, "red", [
                "maximum relative error exceeds 0.5",
                ]),
            ({}, {"requires_grad": False}, "yellow", ["requires_grad is inconsistent"]),
        ],
    )  # fmt: skip
    def test_statistics(self, judged, given, made, colour, texts):
        sides = [api(tensor(X, **g), output=tensor(X, **m)) for g, m in ((given, made), ({}, {}))]
        rows = add_highlights(judged(*sides))
        assert of_row(rows, rows.select("colour", "colour_messages")) == (colour, texts)

    def test_a_large_difference_that_grows(self, judged):
        sides = [api(tensor(X, Max=100.0 + g), output=tensor(X, Max=1000.0 + m)) for g, m in ((5.0, 60.0), (0.0, 0.0))]
        rows = add_highlights(judged(*sides))
        assert of_row(rows, rows.select("colour", "colour_messages")) == ("yellow", [GREW_BOTH])

    def test_a_red_input_is_held_against_nothing(self, judged):
        sides = [api(tensor(X, Min=m), output=tensor(X, Max=4.0 * f)) for m, f in ((-INF, 1.15), (-2.0, 1.0))]
        rows = add_highlights(judged(*[_strict(side) for side in sides]))
        assert rows["colour"].to_list() == ["red", None]

    @pytest.mark.parametrize(
        ("given", "made", "colour", "texts"),
        [
            ((1.0, 1.0, 0.0), (1.0, 1.0, 0.0), None, []),
            ((1.0, 1.0, 0.0), (1.0, 0.59, 0.1), "red",
             ["The input/parameter's one thousandth err ratio exceeds 0.9, while the output's is below 0.6"]),
            ((1.0, 1.0, 0.0), (1.0, 0.85, 0.1), "yellow",
             ["The output's one thousandth err ratio decreases by more than 0.1 compared to the input/parameter's"]),
            ((1.0, 0.85, 0.0), (0.85, 0.8, 0.1), "yellow",
             ["The output's cosine decreases by more than 0.1 compared to the input/parameter's"]),
            ((1.0, 1.0, 0.0), (1.0, 1.0, 2e10), "red", ["maximum absolute error exceeds 1e+10"]),
            ((1.0, 0.5, 2.0), (1.0, 0.5, 20.0), "yellow",
             [GREW_BOTH]),
            ((None, None, 0.0), (NAN, None, 0.1), None, []),
        ],
    )  # fmt: skip
    def test_tensors(self, judged, given, made, colour, texts):
        rows = judged(api(tensor(X), output=tensor(X)), api(tensor(X), output=tensor(X)))
        columns = zip(("cosine", "within_1e3", "largest_abs"), zip(given, made, strict=True), strict=True)
        rows = add_highlights(rows.with_columns(pl.Series(n, v, dtype=pl.Float64) for n, v in columns))
        assert of_row(rows, rows.select("colour", "colour_messages")) == (colour, texts)


def _strict(record):
    for value in [*record["input_args"], *record["output"]]:
        value["Min"] = "-Infinity" if value["Min"] == -INF else value["Min"]
    return record


class TestAdvice:
    @pytest.mark.parametrize(
        ("bad", "line", "node", "text"),
        [
            (None, "NA", "NA", "All data in the comparison result meets"),
            ("Functional.relu.0.forward.input.0", "2", None, "may have been changed in place"),
            ("Functional.relu.0.forward.output.0", "3", None, "The operator itself is suspicious."),
            ("Functional.relu.0.backward.input.0", "10", None, "Check first whether results of the forward"),
            ("Functional.relu.0.backward.output.0", "11", None, "The operator's backward is suspicious."),
            ("Torch.matmul.0.forward.output.0", "5", None, "seed_all(mode=True)"),
            ("Functional.batch_norm.0.forward.input.1", "7", None, "running mean of a batch normalisation"),
        ],
    )
    def test_the_first_suspicious_row(self, judged, bad, line, node, text):
        data = {
            "Functional.relu.0.forward": api(tensor(X), output=tensor(X)),
            "Torch.matmul.0.forward": api(tensor(X), output=tensor(X)),
            "Functional.batch_norm.0.forward": api(tensor(X), tensor(X), {"type": "int", "value": 1}, output=tensor(X)),
            "Functional.relu.0.backward": {"input": [tensor(X)], "output": [tensor(X)]},
        }
        rows = judged(data, data)
        names = rows["name_target"].to_list()
        first = names.index(bad) if bad else len(names)
        results = pl.Series(["Yes" if i < first else "No" for i in range(len(names))])
        lines = advise(rows, results).lines()
        assert lines[:2] == (f"Line: {line}", f"Suspect Nodes: {bad or node or 'NA'}")
        assert lines[2].startswith("Expert Advice: ")
        assert text in lines[2]
