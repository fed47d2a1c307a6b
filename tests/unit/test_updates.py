"""Parameters after an update: which of them differ, and which have moved only as round-off moves them."""

import math

import numpy as np
import polars as pl
import pytest

from msprobe_core.judge.columns import Match
from msprobe_core.judge.limits import Precision
from msprobe_core.judge.updates import parameters_of, with_judged_updates, with_updated_parameters
from msprobe_core.model import Role

NUM_LAYERS = 8
NUMEL = 4096


def rows(name="weight", changes=None, *, gradient_noise=0.01, precision=Precision.FLOAT32, **given):
    """Return rows of one parameter of each layer: by default its norm is off by 1e-4, its maximum by a tenth."""
    table = []
    for layer in range(NUM_LAYERS):
        stem = f"Module.layers.{layer}.fc.Linear"
        value = {
            "key": f"{stem}.forward.0.parameters.{name}", "role": Role.PARAMETERS.value, "is_parameter": True,
            "norm_golden": 3.0, "norm_target": 3.0 * (1 + 1e-4 * (1 + layer / 8)), "max_target": 0.11,
            "mean_target": 0.001, "score": 9.0, "excess": 9.0, "noise_floor": None,
        } | given | (changes or {}).get(layer, {})  # fmt: skip
        of_call = {"key": f"Functional.linear.{layer}.forward.input.1", "role": Role.INPUT.value}
        gradient = {
            "key": f"{stem}.parameters_grad.0.{name}", "role": Role.PARAMETERS_GRAD.value, "is_parameter": False,
            "noise_floor": gradient_noise, "norm_target": 0.5, "mean_target": 0.0, "excess": 0.0, "score": 0.0,
        }  # fmt: skip
        table += [value, value | of_call, value | gradient]
    common = {"mean_golden": 0.001, "max_golden": 0.1, "min_golden": -0.1, "min_target": -0.1}
    return pl.DataFrame(table).with_columns(
        *[pl.lit(value).alias(column) for column, value in common.items()],
        *[pl.lit(NUMEL).alias(f"numel_{side}") for side in ("target", "golden")],
        *[pl.lit("[64, 64]").alias(f"shape_{side}") for side in ("target", "golden")],
        pl.lit(Match.BOTH.value).alias("match"),
        pl.lit(int(precision)).alias("precision"),
        pl.lit(1.0).alias("score_limit"),
        pl.lit(1e-3).alias("limit"),
        pl.lit(False).alias("is_exempt"),
    )


def wrong(frame):
    judged = with_updated_parameters(frame)
    assert judged.columns == frame.columns
    return judged.filter(pl.col("is_parameter") & (pl.col("excess") > 1))["key"].to_list()


def test_extremes_that_jump_are_no_difference():
    assert wrong(rows()) == []


@pytest.mark.parametrize("change", [{"norm_target": 3.03}, {"mean_target": 0.0015}], ids=["not updated", "shifted"])
def test_the_one_that_is_farther_off_than_its_like_is_another_wherever_it_is_given(change):
    assert wrong(rows(changes={5: change})) == [
        "Module.layers.5.fc.Linear.forward.0.parameters.weight", "Functional.linear.5.forward.input.1",
    ]  # fmt: skip


def test_where_all_are_far_off_all_are_others():
    assert len(wrong(rows(norm_target=3.06))) == 2 * NUM_LAYERS


@pytest.mark.parametrize(("others", "num_wrong"), [(0.01, 0), (0.5, 2)], ids=["of a bias", "as all gradients"])
def test_nothing_is_said_of_one_whose_gradient_is_all_noise_unless_all_are(others, num_wrong):
    """All of them are noise only because the parameters already differ by much."""
    biases = rows("bias", changes={5: {"norm_target": 3.03}}, gradient_noise=0.5)
    weights = pl.concat([rows(name, gradient_noise=others) for name in ("weight", "scale")])
    assert len(wrong(pl.concat([biases, weights]))) == num_wrong


OF_SIGNS = 3.0 / NUMEL**0.5
"""Size of each element of a parameter that began at zero, after one update of Adam."""


def of_signs(precision, *, lowest=-OF_SIGNS, turned=0, norm=3.0, of_gradient=None):
    """Return the rows of biases, one of which has so many elements of the other sign, and such a norm."""
    is_one = pl.col("key").str.contains("layers.5.fc.Linear.forward", literal=True)
    is_gradient = pl.col("role") == Role.PARAMETERS_GRAD.value
    coarse = int(precision if of_gradient is None else of_gradient)
    return rows("bias", precision=precision, norm_target=3.0).with_columns(
        max_golden=pl.lit(OF_SIGNS),
        min_golden=pl.lit(lowest),
        precision=pl.when(is_gradient).then(coarse).otherwise("precision"),
        mean_target=pl.when(is_one).then(0.001 + 2 * OF_SIGNS * turned / NUMEL).otherwise(0.001),
        norm_target=pl.when(is_one).then(norm).otherwise(3.0),
    )


@pytest.mark.parametrize(
    ("precision", "lowest", "turned", "is_wrong"),
    [
        (Precision.FLOAT32, -OF_SIGNS, 1, False),
        (Precision.FLOAT32, -OF_SIGNS, 2, True),
        (Precision.BFLOAT16, -OF_SIGNS, 40, False),
        (Precision.BFLOAT16, -OF_SIGNS, 400, True),
        (Precision.BFLOAT16, 0.9 * OF_SIGNS, 40, True),  # no update makes all elements positive
    ],
)
def test_as_many_elements_may_have_the_other_sign_as_a_gradient_is_rounded(precision, lowest, turned, is_wrong):
    assert bool(wrong(of_signs(precision, lowest=lowest, turned=turned))) == is_wrong


def test_the_gradient_may_be_coarser_than_its_parameter():
    assert wrong(of_signs(Precision.FLOAT32, turned=40))
    assert not wrong(of_signs(Precision.FLOAT32, turned=40, of_gradient=Precision.BFLOAT16))


@pytest.mark.parametrize(("vanished", "is_wrong"), [(1, False), (3, True)])
def test_an_element_may_have_no_update(vanished, is_wrong):
    frame = of_signs(Precision.FLOAT32, norm=3.0 * (1 - vanished / (2 * NUMEL)))
    assert bool(wrong(frame)) == is_wrong


def test_so_many_elements_have_no_update_that_their_number_varies():
    """As where gradients underflow: a sixth of the elements is zero, and the norm smaller by a twelfth."""
    size, golden = OF_SIGNS / (1 - 1 / 6) ** 0.5, 3.0
    varied = [golden * (1 + by / (2 * NUMEL)) for by in (60, 400)]
    for norm, is_wrong in zip(varied, (False, True), strict=True):
        for precision in (Precision.FLOAT16, Precision.FLOAT32):
            frame = of_signs(Precision.FLOAT32, norm=norm, of_gradient=precision)
            frame = frame.with_columns(max_golden=pl.lit(size), min_golden=pl.lit(-size))
            assert bool(wrong(frame)) == (is_wrong or precision == Precision.FLOAT32)


def test_floors_of_whole_trainings_win():
    frame = rows(noise_floor=1e-3)
    assert with_updated_parameters(frame).equals(frame)


def test_without_a_measure_of_noise_nothing_changes():
    frame = rows().drop("noise_floor")
    assert with_updated_parameters(frame).equals(frame)


# --- updates themselves ---

NUM_PARAMETERS = 12
SEED = np.random.RandomState(3)
INITIAL = [SEED.randn(64, 64) * 0.1 for _ in range(NUM_PARAMETERS)]
UPDATES = [SEED.randn(64, 64) * 1e-4 * (1 + number) for number in range(NUM_PARAMETERS)]


def step(arrays, golden, *, gradient_error=1e-6, digits=np.float64, floor=None, score=0.0):
    """Return the rows of parameters and of their gradients in one step."""
    table = []
    for number, sides in enumerate(zip(arrays, golden, strict=True)):
        stem = f"Module.layers.{number}.fc.Linear"
        statistics = {
            f"{name}_{side}": float(digits(function(array)))
            for side, array in zip(("target", "golden"), sides, strict=True)
            for name, function in (("mean", np.mean), ("norm", np.linalg.norm), ("max", np.max), ("min", np.min))
        }
        error = float(np.linalg.norm(sides[0] - sides[1]) / np.linalg.norm(sides[1]))
        own = {
            "key": f"{stem}.forward.0.parameters.weight", "role": Role.PARAMETERS.value, "is_parameter": True,
            "judged_error": error, **statistics,
        }  # fmt: skip
        gradient = {
            "key": f"{stem}.parameters_grad.0.weight", "role": Role.PARAMETERS_GRAD.value, "is_parameter": False,
            "judged_error": gradient_error,
        }  # fmt: skip
        table += [own, own | gradient]
    return pl.DataFrame(table).with_columns(
        *[pl.lit(NUMEL).alias(f"numel_{side}") for side in ("target", "golden")],
        *[pl.lit("[64, 64]").alias(f"shape_{side}") for side in ("target", "golden")],
        pl.lit(Match.BOTH.value).alias("match"),
        pl.lit(1, pl.Int8).alias("precision"),
        pl.lit(False).alias("is_exempt"),
        *[pl.lit(score).alias(name) for name in ("score", "excess")],
        pl.lit(1.0).alias("score_limit"),
        pl.lit(floor, pl.Float64).alias("noise_floor"),
    )


def updated(factors, *, noise=1e-7, **options):
    """Return what is judged of a second step whose updates are so many times the golden ones, and a bit of rounding."""
    random = np.random.RandomState(5)
    golden = [(initial + update).astype(np.float32) for initial, update in zip(INITIAL, UPDATES, strict=True)]
    target = [
        (initial + update * factor * (1 + noise * random.randn(64, 64))).astype(np.float32)
        for initial, update, factor in zip(INITIAL, UPDATES, factors, strict=True)
    ]
    before = parameters_of(step(INITIAL, INITIAL, **options))
    judged = with_judged_updates(step(target, golden, **options), before)
    wrong = judged.filter(pl.col("is_parameter") & (pl.col("excess") > 1))
    factor = judged["update_factor"][0]
    return [int(key.split(".")[2]) for key in wrong["key"]], factor


def test_updates_that_round_are_the_same():
    assert updated([1.0] * NUM_PARAMETERS) == ([], None)


@pytest.mark.parametrize("factor", [1.1, 0.98, 0.0])
def test_a_different_update_is_reported_however_small(factor):
    wrong, common = updated([factor if number == 4 else 1.0 for number in range(NUM_PARAMETERS)])
    assert wrong == [4]
    assert common is None


def test_a_factor_common_to_all_updates_is_reported():
    wrong, factor = updated([1.1] * NUM_PARAMETERS)
    assert wrong == list(range(NUM_PARAMETERS))
    assert factor == pytest.approx(1.1, abs=1e-3)


def test_an_optimizer_that_makes_more_of_rounding_says_nothing_of_single_updates():
    """As Adam does, whose updates differ in elements; a factor that all have still shows."""
    assert updated([1.0] * NUM_PARAMETERS, noise=0.05) == ([], None)
    assert updated([1.0 if number else 1.02 for number in range(NUM_PARAMETERS)], noise=0.05)[0] == []
    wrong, factor = updated([1.3] * NUM_PARAMETERS, noise=0.05)
    assert len(wrong) == NUM_PARAMETERS
    assert factor == pytest.approx(1.3, abs=0.03)


def test_an_update_is_as_far_off_as_its_gradient():
    assert updated([1.01 if number == 4 else 1.0 for number in range(NUM_PARAMETERS)], gradient_error=1.0) == ([], None)


def by_signs(
    *, turned=0, factor=1.0, number=4, size=1e-3, error=1e-7, digits=None, decayed=1.0, change=None, **options
):
    """Return what is judged if all elements are updated by one size, and some or all of one parameter otherwise.

    Its updated values are rounded to ``digits``; the updates of the last parameter are ``decayed`` times as large.
    ``change`` gets the rows of both steps, and which of them are of this parameter, and returns them changed.
    """
    sizes = [size] * (NUM_PARAMETERS - 1) + [decayed * size]
    golden = [initial + own * np.sign(update) for initial, own, update in zip(INITIAL, sizes, UPDATES, strict=True)]
    target = [array.copy() for array in golden]
    target[number] += (factor - 1) * size * np.sign(UPDATES[number])
    target[number].flat[:turned] -= 2 * size * np.sign(UPDATES[number].flat[:turned])
    if digits is not None:
        target[number] = target[number].astype(digits).astype(float)
    steps = step(INITIAL, INITIAL, gradient_error=error), step(target, golden, gradient_error=error, **options)
    if change is not None:
        steps = change(*steps, pl.col("key").str.contains(f"layers.{number}.", literal=True))
    judged = with_judged_updates(steps[1], parameters_of(steps[0]))
    return judged.filter(pl.col("is_parameter") & (pl.col("excess") > 1))["key"].to_list()


@pytest.mark.parametrize(("turned", "is_wrong"), [(0, False), (1, False), (500, True)])
def test_single_elements_of_updates_of_one_size_may_have_the_other_sign(turned, is_wrong):
    """The statistics of the whole tensor hardly show an update that goes both ways; its extremes do."""
    assert bool(by_signs(turned=turned)) == is_wrong


def test_few_parameters_with_larger_updates_do_not_hide_that_all_others_have_one_size():
    """As decay makes those of large parameters."""
    assert by_signs(turned=1, decayed=2.5) == []


@pytest.mark.parametrize(("digits", "is_wrong"), [(None, False), (np.float16, True)])
def test_an_element_that_turned_is_beyond_floors_if_no_repetition_turned_one(digits, is_wrong):
    """The extremes tell it from another fault: they are equal, or off by a good part of an update."""
    found = by_signs(turned=1, digits=digits, floor=1e-9, score=50.0)
    assert found == (["Module.layers.4.fc.Linear.forward.0.parameters.weight"] if is_wrong else [])


def _nan_in_target(before, after, is_it):
    names = [f"{name}_target" for name in ("mean", "norm", "max", "min")]
    return before, after.with_columns(
        pl.when(is_it).then(math.nan).otherwise(pl.col(name)).alias(name) for name in names
    )


def _without_extremes(before, after, is_it):
    names = [f"{name}_{side}" for name in ("max", "min") for side in ("target", "golden")]
    return before, after.with_columns(pl.when(~is_it).then(pl.col(name)).alias(name) for name in names)


def _without_gradients(before, after, is_it):
    return before.filter(~is_it | pl.col("is_parameter")), after


def _with_distance(before, after, is_it):
    return before, after.with_columns(euclidean=pl.when(is_it).then(1.0))


@pytest.mark.parametrize("change", [_nan_in_target, _without_extremes, _without_gradients, _with_distance])
def test_what_turned_elements_do_not_explain_stays_beyond_its_floor(change):
    floors = {"floor": 1e-9, "score": 50.0}
    assert by_signs(turned=1, **floors) == []
    found = by_signs(turned=1, change=change, **floors)
    assert [int(key.split(".")[2]) for key in found] == [4]


def test_a_parameter_that_only_the_target_updates_is_found():
    def freeze(before, after, is_it):
        names = [f"{name}_golden" for name in ("mean", "norm", "max", "min")]
        initial = before.filter(is_it).row(0, named=True)
        frozen = [pl.when(is_it).then(pl.lit(initial[name])).otherwise(pl.col(name)).alias(name) for name in names]
        return before, after.with_columns(frozen)

    assert [int(key.split(".")[2]) for key in by_signs(change=freeze)] == [4]


@pytest.mark.parametrize("seed", range(5))
def test_a_vector_that_only_the_target_updates_is_found(seed):
    """Updates of one size say nothing of one that the golden run does not make."""
    random = np.random.RandomState(seed)
    initial = random.randn(64) * 0.1
    updated_arrays = [array + 1e-3 * np.sign(update) for array, update in zip(INITIAL, UPDATES, strict=True)]
    golden = [*updated_arrays[:4], initial, *updated_arrays[5:]]
    target = [*updated_arrays[:4], initial + 1e-3 * np.sign(random.randn(64)), *updated_arrays[5:]]
    first = [*INITIAL[:4], initial, *INITIAL[5:]]
    is_it = pl.col("key").str.contains("layers.4.", literal=True)
    before, after = (
        rows.with_columns(
            pl.when(is_it).then(pl.lit(value)).otherwise(pl.col(f"{name}_{side}")).alias(f"{name}_{side}")
            for side in ("target", "golden")
            for name, value in (("numel", 64), ("shape", "[64]"))
        )
        for rows in (step(first, first), step(target, golden, score=50.0))
    )
    judged = with_judged_updates(after, parameters_of(before))
    found = judged.filter(pl.col("is_parameter") & (pl.col("excess") > 1))["key"]
    assert [int(key.split(".")[2]) for key in found] == [4]


def test_updates_of_like_sizes_are_rarely_taken_for_updates_of_one_size():
    """As those of SGD, whose elements have any size: 3 of 200 such models are, and 1 of these 20."""
    excused = 0
    for seed in range(20):
        random = np.random.RandomState(seed)
        golden = [initial + 1e-3 * random.randn(64, 64) for initial in INITIAL]
        target = [array.copy() for array in golden]
        target[4].flat[7] += 1e-3  # as one element that turned
        rows = step(target, golden, floor=1e-9, score=50.0)
        judged = with_judged_updates(rows, parameters_of(step(INITIAL, INITIAL)))
        found = judged.filter(pl.col("is_parameter") & (pl.col("excess") > 1))["key"]
        excused += not any("layers.4." in key for key in found)
    assert excused <= 1


@pytest.mark.parametrize(("factor", "error"), [(1.1, 1e-2), (0.0, 5e-2), (2.0, 5e-2), (-1.0, 5e-2)])
def test_another_update_of_one_parameter_is_found_among_updates_of_one_size(factor, error):
    """In nearly all parameters; where another element becomes the largest, the extremes show no factor."""
    found = [by_signs(number=number, factor=factor, error=error) for number in range(NUM_PARAMETERS)]
    expected = [[f"Module.layers.{number}.fc.Linear.forward.0.parameters.weight"] for number in range(NUM_PARAMETERS)]
    assert sum(keys == key for keys, key in zip(found, expected, strict=True)) >= NUM_PARAMETERS - 1
    assert all(keys in ([], key) for keys, key in zip(found, expected, strict=True))


def test_statistics_in_float32_are_rounded_themselves():
    assert updated([1.0] * NUM_PARAMETERS, digits=np.float32) == ([], None)
    assert updated([0.0 if number == 11 else 1.0 for number in range(NUM_PARAMETERS)], digits=np.float32)[0] == [11]


def test_an_update_within_the_parameters_own_floor_is_explained():
    """As that of a packed bias, of which the key's third has gradients of rounding alone, under Adam."""
    factors = [1.1 if number == 4 else 1.0 for number in range(NUM_PARAMETERS)]
    within = {"floor": 1e-3, "score": 0.5}
    assert updated(factors, **within) == ([], None)
    assert updated(factors, score=0.5) == ([4], None)  # not measured
    assert updated([1.1] * NUM_PARAMETERS, **within)[0] == list(range(NUM_PARAMETERS))


@pytest.mark.parametrize(("is_vector", "wrong"), [(True, []), (False, [4])])
def test_a_third_of_a_vector_may_turn_without_a_measure_of_noise(is_vector, wrong):
    """As the keys' part of a packed bias under Adam; that of a matrix is no noise."""
    shape = (96,) if is_vector else (4, 24)
    random = np.random.RandomState(6)
    initial, signs = random.randn(*shape) * 0.1, np.sign(random.randn(*shape))
    turned = np.where(np.arange(96).reshape(shape) < 32, np.sign(random.randn(*shape)), signs)
    golden, target = ([array.copy() for array in INITIAL] for _ in range(2))
    golden[4], target[4] = initial + 1e-2 * signs, initial + 1e-2 * turned
    steps = [step([*INITIAL[:4], initial, *INITIAL[5:]], [*INITIAL[:4], initial, *INITIAL[5:]]), step(target, golden)]
    is_it = pl.col("key").str.contains("layers.4.", literal=True)
    before, after = (
        rows.with_columns(
            pl.when(is_it).then(pl.lit(value)).otherwise(pl.col(f"{name}_{side}")).alias(f"{name}_{side}")
            for side in ("target", "golden")
            for name, value in (("numel", 96), ("shape", str(list(shape))))
        )
        for rows in steps
    )
    judged = with_judged_updates(after, parameters_of(before))
    found = judged.filter(pl.col("is_parameter") & (pl.col("excess") > 1))["key"].to_list()
    assert [int(key.split(".")[2]) for key in found] == wrong
