"""What in the history of a training does not follow from its past."""

import math
import random

import polars as pl
import pytest

from msprobe_core.monitoring.anomalies import HISTORY, find_anomalies
from msprobe_core.monitoring.history import ID, SCHEMA, Monitored, with_ids
from msprobe_core.monitoring.limits import past_median, past_medians

STEPS, AT = 120, 90
LAYERS = tuple(f"layers.{i}.weight" for i in range(12))


def history(change=None, seed=0):
    """Gradients with noise of a tenth, and weights that drift; ``change`` gives other values."""
    draw = random.Random(seed)
    rows = []
    for step in range(STEPS):
        for place, name in enumerate(LAYERS):
            for quantity in ("param_origin", "grad_reduced"):
                value = 5.0 * 1.002**step if quantity == "param_origin" else math.exp(draw.gauss(0.0, 0.1))
                if change is not None:
                    value = change(step, quantity, name, value)
                rows.append((0, quantity, None, name, None, step, place, value))
    return Monitored(frame=pl.DataFrame(rows, schema={**SCHEMA, "norm": pl.Float64}, orient="row"), statistics=["norm"])


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_drift_are_usual(seed):
    found = find_anomalies(history(seed=seed))
    assert (found.num_found, found.found) == (0, [])
    assert found.num_judged == 2 * len(LAYERS) * (STEPS - HISTORY)


@pytest.mark.parametrize(
    ("quantity", "factor", "code"),
    [
        ("grad_reduced", 4.0, "anomaly.moved"),
        ("grad_reduced", 0.25, "anomaly.moved"),
        ("param_origin", 1.5, "anomaly.moved"),
        ("grad_reduced", 0.0, "anomaly.became-zero"),
        ("grad_reduced", math.nan, "anomaly.not-finite"),
    ],
)
def test_the_first_value_that_moves_is_named(quantity, factor, code):
    def change(step, own, name, value):
        return value * factor if (own, name) == (quantity, LAYERS[5]) and step >= AT else value

    first = find_anomalies(history(change)).found[0]
    assert (first.step, first.place.quantity, first.place.name) == (AT, quantity, LAYERS[5])
    assert first.finding.code == code


def test_a_fault_that_stays_does_not_widen_its_own_limit():
    alone, staying = (
        find_anomalies(history(lambda step, _, name, value, last=last: value * 4 if AT <= step <= last else value))
        for last in (AT, STEPS)
    )
    assert alone.found[0].fields["limit"] == staying.found[0].fields["limit"]


def test_what_was_infinite_from_the_first_is_meant():
    def change(_step, quantity, name, value):
        return math.inf if (quantity, name) == ("grad_reduced", LAYERS[0]) else value

    assert find_anomalies(history(change)).num_found == 0


def test_steps_can_be_chosen():
    found = find_anomalies(
        history(lambda step, quantity, _, value: value * 9 if step in (70, AT) and quantity[0] == "g" else value),
        steps=[AT],
        most=1000,
    )
    assert {anomaly.step for anomaly in found.found} == {AT}


def test_medians_of_the_past_are_the_same_without_the_nulls_that_a_series_begins_with():
    draw = random.Random(0)
    values = [[None] * (40 * series) + [draw.gauss(0, 1) for _ in range(150)] for series in range(3)]
    values[1][90] = values[2][100] = values[2][101] = None
    rows = [(series, value) for series, column in enumerate(values) for value in column]
    frame = pl.DataFrame(rows, schema={"of": pl.Int64, "value": pl.Float64}, orient="row")
    expected = frame.select(past_median("value").over("of")).to_series()
    assert past_medians(frame, "value", "of").equals(expected, null_equal=True)
    assert 0 < expected.null_count() < frame.height


def test_steps_in_another_order_give_the_same_history():
    frame = history().frame
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=1)
    assert with_ids(shuffled).sort(ID, "step").equals(with_ids(frame))
