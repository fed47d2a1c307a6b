"""Parameters behind an update: which of them are another, and which have moved as rounding moves them."""

import polars as pl
import pytest

from msprobe_core.compare.align import Match
from msprobe_core.locate.updates import with_updated_parameters
from msprobe_core.model import Role

NUM_LAYERS = 8
NUMEL = 4096


def rows(name="weight", changes=None, *, gradient_noise=0.01, **given):
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


def test_nothing_is_said_of_one_whose_gradient_is_all_noise():
    assert wrong(rows("bias", changes={5: {"norm_target": 3.03}}, gradient_noise=0.5)) == []


def test_floors_of_whole_trainings_win():
    frame = rows(noise_floor=1e-3)
    assert with_updated_parameters(frame).equals(frame)


def test_without_a_measure_of_noise_nothing_changes():
    frame = rows().drop("noise_floor")
    assert with_updated_parameters(frame).equals(frame)
