"""What healthy updates do to values: jumps of single elements, noise that is divided by its size, parameters apart."""

from functools import partial

import numpy as np
import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core import names
from msprobe_core.calibrate import calibrate
from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.judge.noise import load_noise
from msprobe_core.judge.noise.carried import AMPLIFICATION, carried_distance
from msprobe_core.judge.noise.measures import MEASURES
from msprobe_core.locate import LocateOptions, LocateVerdict, locate
from msprobe_core.model import Role

SIZE = (16, 32)
LAST_DIGIT = 1e-7


def values(seed):
    return np.random.default_rng(seed).normal(size=SIZE)


def repeated(x, seed):
    """Return values with other last digits; those of seed 0 are the golden run's."""
    return x * (1 + LAST_DIGIT * np.random.default_rng(seed).normal(size=x.shape)) if seed else x


def located(target, golden):
    return locate(target, golden, LocateOptions(compare=CompareOptions(noise=load_noise(golden))))


def calibrated(write, tmp_path):
    """Write a golden run and calibrate it by three repetitions of it; return where it is."""
    golden = tmp_path / "golden"
    for seed in range(4):
        write((golden / "calibration" / f"run{seed}" if seed else golden) / "step0" / "rank0", seed)
    calibrate(golden)
    return golden


# --- calls that are given nothing but noise -----------------------------------------------------------------------


def signs(place, seed, *, is_noise=True, made=1.0):
    """Write calls that make something of the sign of a value, which is all rounding or is none."""
    data = {}
    for i in range(6):
        noise = 1e-9 * (1, 3, 0.4, 2)[seed % 4] * values(100 + 17 * seed + i)
        given = noise if is_noise and i == 3 else repeated(values(i), seed)
        data[f"Torch.sum.{i}.forward"] = api(tensor(repeated(values(50 + i), seed)), output=tensor(given))
        sign = np.where(values(i) > 0, 0.5, -0.5)  # the same in all repetitions, as it happened
        data[f"Torch.sign.{i}.forward"] = api(tensor(given), output=tensor(sign * made if i == 3 else sign))
    write_dump(place, data)


@pytest.mark.parametrize("made", [0.0, 3.0], ids=["made zero by other kernels", "made large"])
def test_what_is_made_of_a_value_that_is_all_noise_says_nothing(tmp_path, made):
    golden = calibrated(signs, tmp_path)
    signs(tmp_path / "target" / "step0" / "rank0", 7, made=made)
    assert located(tmp_path / "target", golden).verdict is LocateVerdict.AGREE


def test_the_same_made_of_a_value_that_is_known_is_a_fault(tmp_path):
    def known(place, seed):
        signs(place, seed, is_noise=False)

    golden = calibrated(known, tmp_path)
    signs(tmp_path / "target" / "step0" / "rank0", 7, is_noise=False, made=3.0)
    found = located(tmp_path / "target", golden)
    assert found.verdict is LocateVerdict.FAULT
    assert found.suspects[0].entry == "Torch.sign.3.forward"


def test_noise_that_is_equal_to_the_bit_is_as_good_as_any_value(tmp_path):
    golden = calibrated(signs, tmp_path)
    signs(tmp_path / "target" / "step0" / "rank0", 0, made=3.0)
    found = located(tmp_path / "target", golden)
    assert [suspect.entry for suspect in found.suspects] == ["Torch.sign.3.forward"]


# --- calls of the optimizer, whose updates are as large where a gradient is all rounding ---------------------------


def updates(place, seed, *, jumps=None, caller=names.OPTIMIZER, first=0, turned=None, factor=1.0):
    """Write updates of six parameters; in repetition 1 one element of the ``first`` jumps, as its gradient is noise.

    That of ``turned`` has another largest element, but the same norm and mean, times ``factor``.
    """
    data, parents = {}, {}
    for i in range(6):
        made = repeated(values(i) / 10, seed)
        if i == (first if seed == 1 else jumps):
            made = made.copy()
            made[3, 3] = 1.2 if seed == 1 else 0.9
        if i == turned:
            three = [made.argmax(), made.argmin() - 1, made.argmin() - 2]
            made.flat[three] = 2 * made.flat[three].mean() - made.flat[three]
            made *= factor
        data[f"Tensor.addcdiv_.{i}.forward"] = api(tensor(repeated(values(i), seed)), output=tensor(made))
        parents[f"Tensor.addcdiv_.{i}.forward"] = caller
    write_dump(place, data, parents=parents)


def wrong(golden, target):
    unit = compare_dumps(
        target / "step0" / "rank0", golden / "step0" / "rank0", options=CompareOptions(noise=load_noise(golden))
    ).units[0]
    return unit.rows.filter(pl.col("verdict") == "error")["name_target"].to_list()


def test_an_update_may_jump_as_that_of_another_parameter_did_in_a_repetition(tmp_path):
    golden = calibrated(updates, tmp_path)
    updates(tmp_path / "target" / "step0" / "rank0", 7, jumps=4)
    assert wrong(golden, tmp_path / "target") == []


@pytest.mark.parametrize(
    ("caller", "factor", "num_wrong"), [(names.OPTIMIZER, 1.0, 0), (names.OPTIMIZER, 1.1, 1), (None, 1.0, 1)]
)
def test_another_element_of_an_update_may_be_the_largest_though_it_was_in_no_repetition(
    tmp_path, caller, factor, num_wrong
):
    golden = calibrated(partial(updates, caller=caller, first=None), tmp_path)
    updates(tmp_path / "target" / "step0" / "rank0", 7, turned=4, factor=factor, caller=caller)
    assert wrong(golden, tmp_path / "target") == ["Tensor.addcdiv_.4.forward.output.0"] * num_wrong


def test_outside_of_the_optimizer_nothing_jumps(tmp_path):
    def outside(place, seed):
        updates(place, seed, caller=None)

    golden = calibrated(outside, tmp_path)
    updates(tmp_path / "target" / "step0" / "rank0", 7, jumps=4, caller=None)
    assert wrong(golden, tmp_path / "target") == ["Tensor.addcdiv_.4.forward.output.0"]


def scales(place, seed, *, jumps=None):
    """Write a second step of modules whose weight has been updated, and which give it to a product."""
    data, parents = {}, {}
    for i in range(6):
        module, product = f"Module.norms.{i}.Norm.forward.0", f"Tensor.__mul__.{i}.forward"
        weight = repeated(values(i), seed)
        if i == jumps:
            weight = weight * (1 + 3e-4)
        x = repeated(values(50 + i), seed)
        data[product] = api(tensor(weight), tensor(x), output=tensor(x * weight))
        data[module] = api(tensor(x), output=tensor(x * weight)) | {"parameters": {"weight": tensor(weight)}}
        parents |= {product: module, module: None}
    write_dump(place, data, parents=parents)


def test_a_call_that_is_given_a_parameter_has_the_floor_of_the_parameter(tmp_path):
    """Other weights jumped in repetitions; that this one did not is chance, in its module as in the product."""

    def write(place, seed):
        scales(place, seed, jumps=seed or None)

    golden = calibrated(write, tmp_path)
    scales(tmp_path / "target" / "step0" / "rank0", 7, jumps=5)
    unit = compare_dumps(
        tmp_path / "target" / "step0" / "rank0",
        golden / "step0" / "rank0",
        options=CompareOptions(noise=load_noise(golden)),
    ).units[0]
    floors = dict(unit.rows.select("name_target", "noise_floor").rows())
    given, own = floors["Tensor.__mul__.5.forward.input.0"], floors["Module.norms.5.Norm.forward.0.parameters.weight"]
    assert given == pytest.approx(own, rel=0.5)


# --- parameters that an earlier step has made others ---------------------------------------------------------------

NUM_PARAMETERS = 21


def parameters(distances, shape="[64, 64]", name="weight"):
    """Return parameters that are off by so much of their norm, by the distance of their tensors."""
    frame = pl.DataFrame(
        {
            "name_target": [f"Module.{i}.Linear.forward.0.parameters.{name}" for i in range(len(distances))],
            "role": Role.PARAMETERS.value,
            "roundoff": 2.0**-24,
            "precision_limit": 1e-3,
            "numel_golden": 4096,
            "shape_golden": shape,
            **{measure.column: distances for measure in MEASURES},
        }
    )
    return frame.with_columns(pl.col(measure.column).cast(pl.Float64) for measure in MEASURES)


def test_nine_of_ten_parameters_say_what_was_carried_into_a_step():
    distances = [1e-6 * (i + 1) for i in range(NUM_PARAMETERS)]
    assert carried_distance(parameters(distances)) == pytest.approx(AMPLIFICATION * 19e-6)


def test_the_tenth_that_is_farthest_off_says_nothing():
    usual = [1e-6] * (NUM_PARAMETERS - 2)
    assert carried_distance(parameters([*usual, 5e-4, 5e-4])) == pytest.approx(AMPLIFICATION * 1e-6)
    many = [1e-6] * (NUM_PARAMETERS - 4)
    assert carried_distance(parameters([*many, *[5e-4] * 4])) == pytest.approx(AMPLIFICATION * 5e-4)


def test_a_parameter_may_be_as_far_off_as_gradients_are_coarse():
    """In mixed precision; the limit of its own dtype is lower."""
    own = parameters([5e-3] * NUM_PARAMETERS)
    gradients = own.with_columns(
        pl.col("name_target").str.replace("forward.0.parameters", "parameters_grad.0", literal=True),
        role=pl.lit(Role.PARAMETERS_GRAD.value),
        precision_limit=pl.lit(1e-2),
    )
    assert carried_distance(own) == pytest.approx(AMPLIFICATION * 1e-3)
    assert carried_distance(pl.concat([own, gradients])) == pytest.approx(AMPLIFICATION * 5e-3)


def test_what_a_step_itself_has_updated_is_carried_only_where_no_repetition_shows_it():
    equal, updated = parameters([0.0] * 10), parameters([1e-4] * 10)
    later = updated.with_columns(pl.col("name_target").str.replace("forward.0", "forward.1", literal=True))
    rows = pl.concat([equal, later])
    assert carried_distance(rows, is_measured=True) == 0.0
    assert carried_distance(rows) > 0.0


def test_where_few_matrices_differ_nothing_was_carried():
    assert carried_distance(parameters([0.0] * 12 + [1e-4] * 9)) == 0.0
    many = parameters([0.0] * 11 + [1e-4] * 10)
    assert carried_distance(many) > 0.0
    vectors = parameters([0.0] * 30 + [1e-4], "[4096]", "bias")
    assert carried_distance(pl.concat([many, vectors])) > 0.0


def test_one_wrong_matrix_of_two_or_in_many_calls_is_no_update():
    assert carried_distance(parameters([0.0, 1e-4])) == 0.0
    assert carried_distance(parameters([1e-4])) > 0.0
    again = pl.concat([parameters([1e-4])] * 50)
    assert carried_distance(pl.concat([parameters([0.0] * 3).tail(2), again])) == 0.0


def test_a_model_of_vectors_is_judged_by_them():
    assert carried_distance(parameters([0.0] * 10 + [1e-4] * 11, "[4096]")) > 0.0
