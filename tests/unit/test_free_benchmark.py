"""Perturbations of calls, the noise along a line of inputs, and the files of the task ``free_benchmark``."""

import csv
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from msprobe_core.api_check.verdict import CallVerdict, OutputVerdict, Verdict
from msprobe_core.config import load_config
from msprobe_core.config.load import check_config
from msprobe_core.config.schema import DataMode, PertMode
from msprobe_core.errors import ConfigError, DumpError, StoreError
from msprobe_core.findings import Finding
from msprobe_core.free_benchmark.perturbations import STEPS, line_through, perturbed
from msprobe_core.free_benchmark.published_rows import COLUMNS, append_rows, rows_of
from msprobe_core.free_benchmark.ranking import read_ranking
from msprobe_core.free_benchmark.reaction import distance_of, is_same, is_unmoved, noise_of, published_ratio
from msprobe_core.free_benchmark.reaction_codes import ReactionCode
from msprobe_core.free_benchmark.row_gains import GAIN_FACTOR, gain_of_rows
from msprobe_core.model import Level, Phase, ReplayCall, ReplayTensor, Task
from msprobe_core.names import parse_entry
from msprobe_core.store.dtype_values import rounded

SITE = parse_entry("Functional.f.0.forward")


def tensor(values, dtype="float32", **rest):
    return ReplayTensor(values=rounded(np.asarray(values, float), dtype), dtype=dtype, **rest)


def call(*args, **kwargs):
    return ReplayCall(site=SITE, args=list(args), kwargs=kwargs)


# --- perturbations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "digits"), [("bfloat16", 8), ("float16", 11), ("float32", 24), ("float64", 53)])
def test_bit_noise_flips_the_last_bit_of_each_normal_number(dtype, digits):
    given = tensor([1.0, -1.0, 1.0 + 2.0 ** (1 - digits), 3.0, 0.0, math.inf], dtype)
    found = perturbed(call(given), PertMode.BIT_NOISE).call.args[0].values.astype(float)
    last = 2.0 ** (1 - digits)
    assert found.tolist() == [1 + last, -1 - last, 1.0, 3 + 2 * last, 0.0, math.inf]


def test_noise_is_added_to_the_first_floating_tensor_where_it_is_large():
    numbers = ReplayTensor(values=np.arange(3), dtype="int64")
    small = np.float32([1e-3, 1e-5, -1e-3])
    found = perturbed(call(numbers, [tensor(small)], other=tensor([1.0])), PertMode.ADD_NOISE).call
    assert found.args[0] is numbers
    expected = small.astype(float) + np.array([1e-8, 0, 1e-8])
    assert found.args[1][0].values.tolist() == expected.astype(np.float32).tolist()
    assert found.kwargs["other"].values.tolist() == [1.0]


def test_one_tensor_in_two_places_changes_in_both():
    given = tensor([1.0, 2.0], identity=7)
    found = perturbed(call(given, given), PertMode.CHANGE_VALUE).call
    assert [each.values.tolist() for each in found.args] == [[2.0, 1.0], [2.0, 1.0]]


def test_half_precision_becomes_float32_everywhere():
    nested = {"a": [tensor([1.5], "bfloat16")]}
    found = perturbed(call(tensor([2.5], "float16"), nested, tensor([1.0])), PertMode.IMPROVE_PRECISION).call
    assert [found.args[0].dtype, found.args[1]["a"][0].dtype, found.args[2].dtype] == ["float32"] * 3


@pytest.mark.parametrize(
    ("args", "mode", "code"),
    [
        ([ReplayTensor(values=np.arange(3), dtype="int64")], PertMode.BIT_NOISE, ReactionCode.NO_FLOATING_INPUT),
        ([tensor([])], PertMode.ADD_NOISE, ReactionCode.EMPTY_INPUT),
        ([tensor([1.0])], PertMode.CHANGE_VALUE, ReactionCode.ONE_ELEMENT),
        ([tensor([0.0, 1e-9])], PertMode.ADD_NOISE, ReactionCode.NOTHING_CHANGED),
        ([tensor([1.0])], PertMode.IMPROVE_PRECISION, ReactionCode.NO_HALF_INPUT),
    ],
)
def test_what_cannot_be_perturbed_is_said(args, mode, code):
    found = perturbed(call(*args), mode)
    assert isinstance(found, Finding)
    assert found.code == code.value
    assert "cancelled" in found.text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_inputs_are_on_one_line(dtype):
    # Between 1 and 1.4 no step leaves the numbers of one exponent, so that all steps are equal to the bit.
    values = 1.2 + 0.2 * np.random.default_rng(0).random(1000)
    given = tensor(values, dtype)
    line = line_through(call(given))
    places = [each.args[0].values.astype(float) - given.values.astype(float) for each in line.calls]
    for step, place in zip(STEPS, places, strict=True):
        assert np.array_equal(place, places[2] * step)
    assert np.all(places[2] != 0)
    assert line.relative == pytest.approx(np.linalg.norm(places[2]) / np.linalg.norm(given.values.astype(float)))


def test_zeros_infinities_and_integers_stay():
    line = line_through(call(tensor([0.0, math.inf, 1.0]), ReplayTensor(values=np.arange(2), dtype="int64")))
    for each in line.calls:
        assert each.args[0].values[:2].tolist() == [0.0, math.inf]
        assert each.args[1].values.tolist() == [0, 1]
    assert line_through(call(tensor([0.0]))) is None


# --- noise --------------------------------------------------------------------------------------------------------


def results_along(function, given, noise=0.0):
    random = np.random.default_rng(1)

    def run(each):
        exact = function(each.args[0].values.astype(np.float64))
        return ReplayTensor(values=exact + noise * random.standard_normal(exact.shape), dtype="float32")

    line = line_through(call(given))
    return run(call(given)), [run(each) for each in line.calls], line.relative


GIVEN = tensor(np.random.default_rng(0).standard_normal(4000))


@pytest.mark.parametrize("function", [np.exp, np.tanh, lambda x: x**3, lambda x: 100 * x])
def test_a_smooth_function_has_no_noise(function):
    before, along, relative = results_along(function, GIVEN)
    found = noise_of(before, along, before, relative, 1)
    assert found.times < 0.5
    assert found.change == 0


@pytest.mark.parametrize("noise", [3e-4, 1e-2])
def test_noise_is_measured_beside_a_large_slope(noise):
    before, along, relative = results_along(lambda x: np.exp(2 * x), GIVEN, noise)
    found = noise_of(before, along, before, relative, 1)
    scale = float(np.linalg.norm(before.values))
    measured = found.times * found.allowed * scale / len(GIVEN.values) ** 0.5
    if not found.is_of_element:
        assert measured == pytest.approx(noise, rel=0.15)
    assert found.times > 3


def test_amplification_is_that_of_the_function():
    before, along, relative = results_along(lambda x: x**3, GIVEN)
    assert noise_of(before, along, before, relative, 1).amplification == pytest.approx(3, rel=0.05)


def test_one_noisy_element_among_many_is_seen():
    before, along, relative = results_along(lambda x: 2 * x, GIVEN)
    along[1].values[17] *= 1.001
    found = noise_of(before, along, before, relative, 1)
    assert found.is_of_element
    assert found.worst == 17
    assert found.times > 1


def test_nan_by_a_small_change_is_counted():
    before, along, relative = results_along(lambda x: 2 * x, GIVEN)
    after = ReplayTensor(values=np.where(np.arange(4000) < 2, np.nan, before.values), dtype="float32")
    assert noise_of(before, along, after, relative, 1).num_not_finite == 2


def test_decisions_may_change_as_often_as_by_a_larger_change():
    numbers = [ReplayTensor(values=np.arange(10) + np.eye(10, dtype=int)[i], dtype="int64") for i in range(5)]
    same = noise_of(numbers[0], numbers[1:], numbers[0], 1e-3, 1)
    assert same.times == 0
    assert noise_of(numbers[0], [numbers[0]] * 4, numbers[1], 1e-3, 1).times > 1


def test_a_result_that_no_step_moves_is_told_from_one_that_reacts():
    before = tensor([1.0, 2.0, 3.0])
    assert is_unmoved(before, [before] * 4)
    assert is_unmoved(before, [tensor([1.01, 2.0, 3.0])] * 4)  # nine tenths of it
    assert not is_unmoved(before, [before, before, tensor([1.0, 2.0, 3.1]), before])
    assert not is_unmoved(tensor([0.0, 0.0]), [tensor([0.0, 0.0])] * 4)  # no size, as after a rectifier
    assert not is_unmoved(ReplayTensor(values=np.arange(3), dtype="int64"), [])


def rows_of_a_norm(num_rows=64, length=64):
    return np.random.default_rng(3).standard_normal((num_rows, length))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_rounded_once_are_off_by_what_rounding_explains(dtype):
    exact = rows_of_a_norm()
    gain = gain_of_rows(tensor(rounded(exact, dtype), dtype), exact)
    assert gain == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_off_by_a_factor_of_half_a_last_digit_are_found(dtype):
    exact = rows_of_a_norm()
    unit = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    factors = 1 + unit * np.random.default_rng(4).uniform(-1, 1, (len(exact), 1))
    result = tensor(rounded(exact * factors, dtype), dtype)
    assert gain_of_rows(result, exact) > GAIN_FACTOR
    error = np.linalg.norm(result.values - exact) / np.linalg.norm(exact)
    assert error < 3 * unit / 3**0.5  # which is what the norm of the errors is allowed


def test_equal_elements_and_equal_rows_count_once():
    uniform = np.full((64, 33), 1 / 33) * np.linspace(1, 1 + 1e-4, 64)[:, None]  # all of a row are rounded alike
    assert gain_of_rows(tensor(rounded(uniform, "bfloat16"), "bfloat16"), uniform) < 2
    same = np.repeat(rows_of_a_norm(1), 64, 0)
    assert gain_of_rows(tensor(rounded(same, "bfloat16"), "bfloat16"), same) is None


@pytest.mark.parametrize(
    ("exact", "dtype"),
    [
        (rows_of_a_norm(7), "bfloat16"),
        (rows_of_a_norm(64, 15), "bfloat16"),
        (rows_of_a_norm(), "float32"),
        (1.0, "float16"),
    ],
    ids=["few rows", "short rows", "float32", "0-d"],
)
def test_too_little_to_tell_a_factor(exact, dtype):
    assert gain_of_rows(tensor(exact, dtype), np.asarray(exact, np.float64)) is None


def test_distances_are_in_units_of_rounding():
    exact = tensor(np.random.default_rng(0).standard_normal(1000))
    assert 0.1 < distance_of(tensor(exact.values, "bfloat16"), exact, num_rounded=1).times < 1
    assert distance_of(tensor(exact.values * 1.01, "bfloat16"), exact, num_rounded=1).times > 1


def test_results_are_the_same_to_the_bit_only():
    nan, zero = tensor([math.nan, 0.0]), tensor([math.nan, -0.0])
    assert is_same(nan, nan)
    assert not is_same(nan, zero)
    assert not is_same(nan, tensor([math.nan, 0.0], "float64"))


@pytest.mark.parametrize(
    ("before", "after", "phase", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.2], Phase.FORWARD, (1.1, False)),
        ([1.0, -2.0], [1.0, 2.0], Phase.FORWARD, (1.0, True)),
        ([1e-9], [-1e-9], Phase.FORWARD, (1.0, False)),
        ([math.nan, 1.0], [1.0, 1.0], Phase.FORWARD, (1.0, False)),
        ([], [], Phase.FORWARD, (1.0, False)),
        ([5e-4], [1e-3], Phase.BACKWARD, (1.0, False)),
    ],
)
def test_published_ratio(before, after, phase, expected):
    ratio, is_flipped = published_ratio(tensor(before, "float64"), tensor(after, "float64"), phase)
    assert (ratio, is_flipped) == (pytest.approx(expected[0]), expected[1])


@pytest.mark.slow
def test_the_ratio_of_a_large_tensor_is_that_of_its_worst_element():
    before = tensor(np.ones(9 << 20))
    after = tensor(np.ones(9 << 20))
    after.values[3] = 2.0  # in the first of several chunks of 32 MB
    assert published_ratio(before, after, Phase.FORWARD)[0] == 2.0


# --- files --------------------------------------------------------------------------------------------------------


def verdict(name="Functional.f.0.forward", held=Verdict.WRONG, ratio=1.5):
    output = OutputVerdict(
        path="0", side="perturbed", dtype="bfloat16", shape=(2, 3), verdict=held,
        reason=Finding(ReactionCode.BEYOND, fields={"times": 9.0}), error=0.1, rounding=0.01, condition=0.01,
        own_error=None, times=9.0, amplification=2.0, worst_index=None, bias=None, ratio=ratio,
    )  # fmt: skip
    return CallVerdict(entry=name, api="Functional.f.0", phase=Phase.FORWARD, verdict=held, outputs=(output,))


def test_rows_are_appended_by_all_ranks_under_one_heading(tmp_path):
    path = tmp_path / "free_benchmark.csv"
    for rank in (0, 1):
        append_rows(path, rows_of(verdict(), PertMode.BIT_NOISE, 3, rank))
    append_rows(path, rows_of(verdict(held=Verdict.RIGHT), PertMode.BIT_NOISE, 3, 0))
    heading, *rows = csv.reader(path.read_text().splitlines())
    assert tuple(heading) == COLUMNS
    assert rows == [
        [str(rank), "bit_noise", "forward", "3", "Functional.f.0", "0.5", "bfloat16", "[2, 3]", "0"] for rank in (0, 1)
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_rows_are_not_written_through_a_link(tmp_path):
    (tmp_path / "free_benchmark.csv").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot be written"):
        append_rows(tmp_path / "free_benchmark.csv", [])
    assert not (tmp_path / "elsewhere").exists()


def write_lines(run, step, unit, *lines):
    directory = run / f"step{step}" / unit
    directory.mkdir(parents=True)
    (directory / "free_benchmark.jsonl").write_text("\n".join(lines))


def line(step, entry, held, times, amplification=None):
    outputs = [{"path": "0", "reason": f"of {step}", "times": times, "amplification": amplification}]
    return json.dumps({"step": step, "call": entry, "verdict": held, "tensors": "f32[2]", "outputs": outputs})


def test_the_worst_reaction_is_first_with_its_first_place(tmp_path):
    write_lines(tmp_path, 0, "rank0", line(0, "Functional.g.0.forward", "right", 0.9, 7.0))
    write_lines(
        tmp_path, 2, "rank1", line(2, "Functional.f.1.forward", "wrong", 40.0, "Infinity"),
        line(2, "Functional.g.1.forward", "right", 0.2, 3.0),
    )  # fmt: skip
    write_lines(tmp_path, 4, "rank0", line(4, "Functional.f.0.forward", "wrong", 90.0), '{"step": 4, "ca')
    found = read_ranking(tmp_path)
    assert [site.api for site in found.sites] == ["Functional.f.forward", "Functional.g.forward"]
    (worst,) = found.bad
    assert worst.first == (2, "rank1", "Functional.f.1.forward")
    assert (worst.num_bad, worst.num_checked, worst.times, worst.reason) == (2, 2, 90.0, "of 2")
    assert (found.num_files, found.num_damaged, found.num_judged) == (3, 1, 4)
    assert [site.amplification for site in found.by_condition] == [math.inf, 7.0]


def test_a_run_without_results_is_an_error(tmp_path):
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    with pytest.raises(DumpError, match="no results of the task 'free_benchmark'"):
        read_ranking(tmp_path)


@pytest.mark.parametrize(("held", "status"), [("wrong", 1), ("suspect", 1), ("right", 0), ("cannot_tell", 2)])
def test_show_answers_with_its_status(tmp_path, held, status):
    write_lines(tmp_path, 0, "rank0", line(0, "Functional.f.0.forward", held, 3.0))
    command = [sys.executable, "-m", "msprobe_core", "free_benchmark", "show", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == status, found.stderr
    assert "Functional.f.forward" in found.stdout


# --- the configuration --------------------------------------------------------------------------------------------

PUBLISHED = {
    "task": "free_benchmark", "dump_path": "run", "rank": [], "step": [], "level": "L1",
    "free_benchmark": {
        "scope": [], "list": [], "fuzz_device": "npu", "pert_mode": "improve_precision", "handler_type": "check",
        "fuzz_level": "L1", "fuzz_stage": "forward", "if_preheat": False, "preheat_step": 15, "max_sample": 20,
    },
}  # fmt: skip


def with_options(**options):
    return PUBLISHED | {"free_benchmark": PUBLISHED["free_benchmark"] | options}


def test_the_published_configuration_is_accepted(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED))
    found = load_config(path)
    assert (found.task, found.level, found.options.max_sample) == (Task.FREE_BENCHMARK, Level.L1, 20)
    assert found.options.data_mode == (DataMode.FORWARD,)


def test_scope_lists_calls():
    found = check_config(with_options(scope=["Torch.matmul.0.forward"], list=["relu"], fuzz_stage="backward"), "file")
    assert (found.options.list, found.options.scope) == (("relu", "Torch.matmul.0."), ())
    assert found.options.data_mode == (DataMode.ALL,)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"pert_mode": "bit_nois"}, "did you mean 'bit_noise'"),
        ({"fuzz_device": "cpu"}, "give both or neither"),
        ({"pert_mode": "to_cpu"}, "give both or neither"),
        ({"handler_type": "fix", "pert_mode": "bit_noise"}, "no better than the training's own"),
        ({"max_sample": 0}, "at least 1"),
        ({"scope": ["matmul"]}, "no call is named"),
        ({"fuzz_level": "L0"}, "allowed: L1"),
    ],
)
def test_wrong_options_are_named(options, expected):
    with pytest.raises(ConfigError, match=expected):
        check_config(with_options(**options), "file")


def test_preheating_has_no_effect_and_is_said(caplog):
    check_config(with_options(if_preheat=True), "file")
    assert "'if_preheat' has no effect" in caplog.text
