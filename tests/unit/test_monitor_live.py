"""The rule ``AnomalyUnusual``: live, it finds what the files say afterwards."""

import math
import random

import polars as pl
import pytest

from msprobe_core.model import Digest, Stats, TensorMeta
from msprobe_core.monitor.alarm_log import sentence_of
from msprobe_core.monitor.calibrated import Calibrated
from msprobe_core.monitor.plan import Rule
from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitoring.anomalies import find_anomalies
from msprobe_core.monitoring.history import SCHEMA, Monitored
from msprobe_core.monitoring.quantities import Op, Quantity
from msprobe_core.monitoring.unusual import HISTORY, equal_share, running_share

STEPS, AT = 120, 90
LAYERS = tuple(f"layers.{i}.weight" for i in range(12))
META = TensorMeta("torch.Tensor", "torch.float32", (2,))
GRADIENT, WEIGHT, MOMENT = Quantity.GRADIENT_REDUCED, Quantity.PARAM_ORIGIN, Quantity.EXP_AVG_SQ


def value_of(draw, quantity, step):
    return 5.0 * 1.002**step if quantity is WEIGHT else math.exp(draw.gauss(0.0, 0.1))


def steps_of(change=None, seed=0, steps=STEPS, layers=LAYERS):
    draw = random.Random(seed)
    for number in range(steps):
        step = Step(number)
        for quantity in (GRADIENT, MOMENT, WEIGHT):
            for name in layers:
                value = value_of(draw, quantity, number)
                if change is not None:
                    value = change(number, quantity, name, value)
                stats = Stats(max=value, min=value, mean=value, l2_norm=value)
                step.add(Reading(quantity, 0, name, None, META, Digest(stats=stats)))
        yield step


def live(steps, **args):
    watch = Calibrated(Rule(rule_name="AnomalyUnusual", **args), [Op.MIN, Op.NORM])
    return [alarm for step in steps for alarm in watch.check(step)]


def written(steps):
    rows = [
        (0, each.quantity.value, 0, each.name, None, step.number, place, float(each.value(Op.NORM)))
        for step in steps
        for place, each in enumerate(step.readings.values())
    ]
    return Monitored(frame=pl.DataFrame(rows, schema={**SCHEMA, "norm": pl.Float64}, orient="row"), statistics=["norm"])


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_drift_are_usual(seed):
    assert live(steps_of(seed=seed)) == []


@pytest.mark.parametrize(
    ("quantity", "factor", "code"),
    [
        (GRADIENT, 4.0, "anomaly.moved"),
        (GRADIENT, 0.25, "anomaly.moved"),
        (WEIGHT, 1.5, "anomaly.moved"),
        (GRADIENT, 0.0, "anomaly.became-zero"),
        (MOMENT, math.nan, "anomaly.not-finite"),
    ],
)
def test_the_first_alarm_is_the_first_anomaly_of_the_files(quantity, factor, code):
    def change(step, own, name, value):
        return value * factor if (own, name) == (quantity, LAYERS[5]) and step >= AT else value

    alarm = live(steps_of(change))[0]
    anomaly = find_anomalies(written(steps_of(change))).found[0]
    assert (alarm.step, alarm.reading.quantity, alarm.reading.name) == (AT, quantity, LAYERS[5])
    assert (anomaly.step, anomaly.place.quantity, anomaly.place.name) == (AT, quantity.value, LAYERS[5])
    assert alarm.finding is not None
    assert alarm.finding.code == anomaly.finding.code == code
    if code == "anomaly.moved":
        assert alarm.finding.fields["distance"] == pytest.approx(anomaly.finding.fields["distance"])


def test_parameters_are_first_where_several_values_alarm_in_a_step():
    every = live(steps_of(lambda step, _, __, value: value * (9 if step == AT else 1)))
    alarms = [alarm for alarm in every if alarm.step == AT]
    assert (alarms[0].reading.quantity, alarms[-1].reading.quantity) == (WEIGHT, GRADIENT)
    assert [alarm.reading.name for alarm in alarms[:12]] == list(LAYERS)
    assert sentence_of(alarms[0], 0).startswith(
        "Rule AnomalyUnusual reports anomaly signal in ('0:layers.0.weight:0/rank0/param_origin', 'norm') at step 90: "
        "norm is "
    )


def test_a_value_that_stays_at_a_new_level_alarms_for_as_long_as_a_past_is_and_then_is_usual():
    def change(step, own, name, value):
        return value * 8 if (own, name) == (GRADIENT, LAYERS[5]) and step >= 40 else value

    alarms = live(steps_of(change))
    assert [alarm.step for alarm in alarms] == list(range(40, 40 + HISTORY))
    back = live(steps_of(lambda step, own, name, value: change(step if step < 110 else 0, own, name, value)))
    assert [alarm.step for alarm in back if alarm.step >= 100] == list(range(110, STEPS))


def test_a_training_of_any_length_keeps_the_probability_of_false_alarms():
    assert sum(running_share(1e-3, number) for number in range(1, 100_000)) < 1e-3
    assert sum(equal_share(1e-3, 500) for _ in range(500)) == pytest.approx(1e-3, rel=1e-3)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("msprobe_core.monitor.calibrated._MAX_PLACES", 7)
    assert live(steps_of(lambda step, _, name, value: math.nan if step == 3 else value))[-1].reading.name == LAYERS[6]
