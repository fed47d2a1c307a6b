"""Limits: as data, in files, by name on the command line; and which one decided."""

import base64
import re
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from dumps import api, tensor, write_dump
from row_findings import codes_of, has, of_row

from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.compare.align import align
from msprobe_core.compare.sketches import add_sketch_error
from msprobe_core.errors import ConfigError
from msprobe_core.findings import Finding, Level
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.judge import statistics_columns
from msprobe_core.judge.limits import conventional, load_limits, parse_limit
from msprobe_core.judge.nodes import judge_nodes, nodes_of, with_scores
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.verdict import judge
from msprobe_core.store.json_reader import read_json_dump

ENTRY = "Functional.linear.0.forward"
ROW = f"{ENTRY}.output.0"
X = [[1.0, -2.0], [3.0, 4.0]]


def scaled(factor):
    return [[v * factor for v in row] for row in X]


@pytest.fixture
def judged(tmp_path):
    """Judge the outputs of one call, or two records, under limits given by name."""

    def judged(target, golden, *limits, by_checksum=False, extra=None):
        sides = [side if side and "output" in side else api(tensor(X), output=side) for side in (target, golden)]
        dumps = [
            read_json_dump(write_dump(tmp_path / name, side if ENTRY in side else {ENTRY: side}))
            for name, side in zip(("target", "golden"), sides, strict=True)
        ]
        rows = add_sketch_error(statistics_columns.add_statistics(align(*dumps).rows))
        if extra is not None:
            rows = rows.with_columns(**{name: pl.lit(value) for name, value in extra.items()})
        table = conventional().with_overrides([parse_limit(*limit) for limit in limits])
        return judge(rows, by_checksum=by_checksum, limits=table)

    return judged


def verdict(rows, name=ROW):
    return of_row(rows, name)


def test_the_shipped_limits_are_the_documented_ones():
    table = conventional()
    assert table.summary() == {
        "float64": 1e-6,
        "float32": 1e-3,
        "float16": 2e-2,
        "bfloat16": 5e-2,
        "float8": 0.25,
        "scalar": 1e-6,
        "overrides": [],
    }
    assert "new_empty_strided" in table.uninitialised
    assert conventional() is table


def test_the_shipped_limits_cost_next_to_nothing():
    conventional.cache_clear()
    best = min(_seconds(conventional) for _ in range(5))
    assert best < 0.05


def _seconds(call):
    call.cache_clear()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


@pytest.mark.parametrize(
    ("limit", "factor", "expected", "finding"),
    [
        ("rel<=1e-2", 1.005, "pass", (RowCode.WITHIN_GIVEN_LIMIT, {"given_by": "--limit 'linear' 'rel<=1e-2'"})),
        ("rel<=1e-2", 1.0005, "pass", None),
        (
            "rel<=1e-2",
            1.02,
            "error",
            (RowCode.LIMIT_REL, {"limit": 0.01, "given_by": "--limit 'linear' 'rel<=1e-2'"}),
        ),
        ("rel<=1e-5", 1.0005, "error", (RowCode.LIMIT_REL, {"limit": 1e-5})),
        ("rel<=inf", 9.0, "pass", (RowCode.WITHIN_GIVEN_LIMIT, {})),
        ("abs<=0.1", 1.02, "pass", (RowCode.WITHIN_GIVEN_LIMIT, {})),
        ("abs<=0.1", 1.05, "error", (RowCode.LIMIT_ABS, {"limit": 0.1})),
        ("abs <= 1 and rel<=1e-2", 1.02, "error", (RowCode.LIMIT_REL, {"limit": 0.01})),
        ("abs<=1e-3 and rel<=1", 1.02, "error", (RowCode.LIMIT_ABS, {"limit": 1e-3})),
        ("cos>=0.9", 1.02, "error", (RowCode.ERROR, {"limit": 0.001})),  # not known: by convention
        ("cos>=0.9 and rel<=0.1", 1.02, "pass", (RowCode.WITHIN_GIVEN_LIMIT, {})),
        ("ignore", 3.0, "pass", (RowCode.IGNORED, {"given_by": "--limit 'linear' 'ignore'"})),
    ],
)
def test_a_limit_by_name_decides(judged, limit, factor, expected, finding):
    own, found = verdict(judged(tensor(scaled(factor)), tensor(X), ("linear", limit)))
    assert own == expected
    assert (finding is None and not found) or has(found, finding[0], **finding[1])


def test_the_last_match_wins_and_others_are_left_alone(judged):
    sides = (tensor(scaled(1.02)), tensor(X))
    assert verdict(judged(*sides, (".*", "rel<=0.1"), (r"output\.0$", "rel<=1e-3")))[0] == "error"
    assert verdict(judged(*sides, (r"output\.0$", "rel<=1e-3"), (".*", "rel<=0.1")))[0] == "pass"
    own, found = verdict(judged(*sides, (r"input\.0$", "rel<=0.1")))
    assert (own, codes_of(found)) == ("error", [RowCode.ERROR])


def test_a_limit_by_name_takes_the_place_of_checksums_and_equality(judged):
    sides = [tensor(scaled(f), md5=md5) for f, md5 in ((1.0, "0000000a"), (1.0, "0000000b"))]
    assert verdict(judged(*sides, by_checksum=True))[0] == "error"
    assert verdict(judged(*sides, ("linear", "rel<=1e-2"), by_checksum=True))[0] == "pass"
    whole = [tensor(values, dtype="torch.int64") for values in ([1, 102], [1, 100])]
    assert verdict(judged(*whole))[0] == "error"
    assert verdict(judged(*whole, ("linear", "abs<=2")))[0] == "pass"
    assert verdict(judged(*whole, ("linear", "abs<=1")))[0] == "error"
    assert verdict(judged(*whole, ("linear", "rel<=inf and cos>=-1"), extra={"cosine": 0.5}))[0] == "error"


def test_a_limit_by_name_excuses_no_nan_no_shape_and_no_missing_row(judged):
    for target in (tensor([float("nan"), 1.0]), tensor([1.0]), None, tensor([float("inf"), 1.0])):
        assert verdict(judged(target, tensor([1.0, 1.0]), ("linear", "rel<=inf")))[0] == "error"
        assert verdict(judged(target, tensor([1.0, 1.0]), ("linear", "ignore")))[0] == "pass"


def test_a_row_that_one_side_lacks_can_be_ignored(judged):
    extra, plain = api(tensor(X), tensor(X), output=tensor(X)), api(tensor(X), output=tensor(X))
    row = f"{ENTRY}.input.1"
    assert verdict(judged(extra, plain, (r"input\.1$", "rel<=inf")), row)[0] == "unmatched"
    for sides in ((extra, plain), (plain, extra)):
        assert verdict(judged(*sides, (r"input\.1$", "ignore")), row)[0] == "pass"
    lone = {ENTRY: plain, "Tensor.abs.0.forward": plain, "output": None}
    rows = judged({**lone}, {ENTRY: plain, "output": None}, ("abs", "ignore"), ("^output", "ignore"))
    assert not judge_nodes(rows)["is_alone"].any()


def test_arguments_have_limits(judged):
    one, other = ({"type": "float", "value": v} for v in (0.1, 0.11))
    sides = [api(tensor(X), argument, output=tensor(X)) for argument in (one, other)]
    row = f"{ENTRY}.input.1"
    assert verdict(judged(*sides), row)[0] == "error"
    assert verdict(judged(*sides, (r"input\.1", "rel<=0.2")), row)[0] == "pass"
    assert verdict(judged(*sides, (r"input\.1", "abs<=0.001")), row)[0] == "error"
    counts = [api(tensor(X), {"type": "int", "value": v}, output=tensor(X)) for v in (1_000_000, 1_000_001)]
    assert verdict(judged(*counts, (r"input\.1", "rel<=1")), row)[0] == "error"
    assert verdict(judged(*counts, (r"input\.1", "abs<=1")), row)[0] == "pass"
    texts = [api(tensor(X), {"type": "str", "value": v}, output=tensor(X)) for v in ("sum", "mean")]
    assert verdict(judged(*texts, (r"input\.1", "rel<=inf")), row)[0] == "error"
    assert verdict(judged(*texts, (r"input\.1", "ignore")), row)[0] == "pass"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("cos>=0.99", "error"), ("cos>=0.9", "pass"), ("abs<=0.5", "pass"), ("abs<=0.2", "error"), ("ulp<=8", "pass"),
     ("ulp<=7", "error"), ("ulp<=8 and cos>=0.99", "error")],
)  # fmt: skip
def test_terms_that_tensors_know(judged, limit, expected):
    known = {"cosine": 0.95, "largest_abs": 0.3, "ulp_max": 8.0}
    assert verdict(judged(tensor(scaled(1.05)), tensor(X), ("linear", limit), extra=known))[0] == expected


@pytest.mark.parametrize("unit", [1.0, 1e-20, 1e-36])
@pytest.mark.parametrize("factor", [-1.0, 0.0], ids=["sign", "zero"])
def test_a_cosine_is_held_to_its_limit_however_small_the_tensors_are(tmp_path, unit, factor):
    for side, scale in (("target", unit * factor), ("golden", unit)):
        values = (np.array(X) * scale).astype(np.float32)
        record = tensor(values, data_name=f"{ROW}.npy")
        path = write_dump(tmp_path / side, {ENTRY: api(output=record)}, task="tensor")
        (path.parent / "dump_tensor_data").mkdir()
        np.save(path.parent / "dump_tensor_data" / f"{ROW}.npy", values)
    limits = conventional().with_overrides([parse_limit("linear", "cos>=0.999")])
    paths = [tmp_path / side / "dump.json" for side in ("target", "golden")]
    (unit_result,) = compare_dumps(*paths, options=CompareOptions(limits=limits)).units
    assert verdict(unit_result.rows)[0] == "error"


@pytest.mark.parametrize(
    ("pattern", "limit", "message"),
    [
        ("(", "rel<=1", r"'\(' is no regular expression that can be used: unclosed group"),
        ("(?=a)", "rel<=1", "look-around, including look-ahead and look-behind, is not supported"),
        ("(a{1000}){1000}", "rel<=1", "exceeds size limit"),
        ("a", "rel<1", "is not of the right form at 'rel<1'; give 'rel<=X'"),
        ("a", "", "is not of the right form at ''"),
        ("a", "cos<=1", "'cos' takes '>='"),
        ("a", "rel>=1", "'rel' takes '<='"),
        ("a", "rel<=-1", "-1 is not between 0 and inf"),
        ("a", "cos>=2", "2 is not between -1 and 1"),
        ("a", "rel<=1e", "'1e' is no number"),
        ("a", "rel<=nan", "is not of the right form"),
        ("a", "rel<=1 and rel<=2", "has 'rel' twice"),
        ("a", "rel<=1, abs<=2", "is not of the right form at 'rel<=1, abs<=2'"),
        ("a", "ignore and rel<=1", "is not of the right form at 'ignore'"),
    ],
)
def test_what_is_no_limit_is_said(pattern, limit, message):
    with pytest.raises(ConfigError, match=message):
        parse_limit(pattern, limit)


def test_a_pattern_cannot_take_for_ever(judged):
    begin = time.perf_counter()
    judged(tensor(X), tensor(X), ("(a*)*b", "rel<=1"), ("(.*)*(.*)*(.*)*x$", "rel<=1"))
    assert time.perf_counter() - begin < 60, "a search that goes back over its steps takes longer than any run"


def test_what_the_documentation_shows_is_accepted(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "compare.md").read_text().partition("### Limits of your own")[2]
    shown = re.findall(r"--limit '([^']+)' '([^']+)'", text)
    assert len(shown) >= 5
    assert {parse_limit(*pair).text for pair in shown} >= {"rel<=1e-2", "abs<=1e-6 and rel<=0.1", "ignore"}
    path = tmp_path / "limits.yaml"
    path.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    table = load_limits(path)
    assert (table.relative.bfloat16, table.overrides[0].rel) == (0.02, 0.01)


def test_a_file_is_laid_over(tmp_path):
    path = tmp_path / "limits.yaml"
    path.write_text(
        "relative: {bfloat16: 1e-1}\nuninitialised: [new]\noverrides:\n  - {pattern: lm_head, limit: rel<=1e-2}\n"
    )
    table = load_limits(path)
    assert (table.relative.bfloat16, table.relative.float32, table.scalar) == (0.1, 1e-3, 1e-6)
    assert table.uninitialised == ("new",)
    assert table.overrides[0].rel == 0.01
    assert table.overrides[0].origin == f"{path} 'lm_head' 'rel<=1e-2'"
    both = table.with_overrides([parse_limit("a", "ignore")])
    assert [o["source"] for o in both.summary()["overrides"]] == [str(path), "--limit"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("relation: {float32: 1.0}", "'relation' is unknown; the fields are relative, scalar"),
        ("relative: {float33: 1.0}", "unknown field `float33`"),
        ("relative: {float32: -1.0}", "float32"),
        ("relative: {float32: .nan}", "Expected `float` >= 0.0"),
        ("relative: 3", "relative"),
        ("scalar: [1]", "scalar"),
        ("overrides: [{pattern: a, limit: rel}]", "the limit 'rel' for 'a' is not of the right form"),
        ("overrides: [{pattern: a, limits: rel<=1}]", "unknown field `limits`"),
        ("overrides: {a: rel<=1}", "Expected `array`"),
        ("[1, 2]", "must hold fields such as"),
        ("a: [", "is no yaml"),
        ("a: !!python/object/apply:os.system [ls]", "is no yaml"),
        ("? [1, 2]\n: 3", "is no yaml|must hold fields"),
        ("\x00", "is no yaml"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, content, message):
    path = tmp_path / "limits.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        load_limits(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_limits(tmp_path / "none.yaml")


def sketched(values, **fields):
    array = np.asarray(values, np.float32)
    sketch = Sketcher(NumpyArrays()).sketch(array)
    return tensor(array, sketch=base64.b64encode(np.asarray(sketch, "<f4").tobytes()).decode(), **fields)


class TestSketches:
    values = np.random.default_rng(0).normal(size=(40, 25))

    def judged(self, judged, target, golden, *limits, **fields):
        sides = [{ENTRY: api(sketched(self.values), output=sketched(side, **fields))} for side in (target, golden)]
        return judged(*[side | {"output": None} for side in sides], *limits)

    def test_elements_that_changed_places_are_an_error(self, judged):
        rows = self.judged(judged, self.values[::-1], self.values)
        row = rows.filter(pl.col("name_target") == ROW).row(0, named=True)
        assert row["error"] < 1e-9
        assert row["verdict"] == "error"
        (finding,) = of_row(rows, ROW)[1]
        assert finding.code is RowCode.SKETCH_ERROR
        assert finding.fields == {"error": row["sketch_error"], "limit": 0.001, "low": row["sketch_low"]}
        assert row["judged_error"] == row["sketch_low"] == pytest.approx(0.8528 * row["sketch_error"])
        node = nodes_of(with_scores(rows, conventional(), {})).row(0, named=True)
        assert node["input_excess"] <= 1 < node["output_excess"]

    @pytest.mark.parametrize(
        ("noise", "expected"), [(0.0, "pass"), (1e-7, "pass"), (9e-4, "pass"), (3e-3, "error"), (1e-2, "error")]
    )
    def test_what_is_surely_over_the_limit_counts(self, judged, noise, expected):
        other = self.values + noise * np.random.default_rng(1).permutation(self.values.ravel()).reshape(40, 25)
        assert verdict(self.judged(judged, other, self.values))[0] == expected

    def test_the_statistics_speak_where_they_tell(self, judged):
        own, found = verdict(self.judged(judged, 2 * self.values, self.values))
        assert (own, codes_of(found)) == ("error", [RowCode.ERROR])

    def test_limits_by_name_and_without_a_norm(self, judged):
        sides = (self.values[::-1], self.values)
        assert verdict(self.judged(judged, *sides, ("linear", "rel<=9")))[0] == "pass"
        nothing = {"Max": None, "Min": None, "Mean": None, "Norm": None}
        assert verdict(self.judged(judged, *sides, **nothing))[0] == "error"
        assert verdict(self.judged(judged, self.values, self.values, **nothing)) == ("pass", [])

    def test_equal_sketches_of_other_shapes_say_nothing(self, judged):
        own, found = verdict(self.judged(judged, self.values.reshape(25, 40), self.values))
        sides = {"target": "[25, 40]", "golden": "[40, 25]"}
        assert (own, found) == ("error", [Finding(RowCode.SHAPE, Level.ERROR, sides)])

    def test_what_was_compared_needs_no_estimate(self, judged):
        sides = [{ENTRY: api(output=sketched(side)), "output": None} for side in (self.values[::-1], self.values)]
        rows = judged(*sides, extra={"euclidean": 0.0, "problem": None})
        assert verdict(rows) == ("pass", [])
