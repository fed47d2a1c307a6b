"""What receives the steps of a monitor while a training runs: alarms, coverage, files."""

import json
import math

from msprobe_core.model import Digest, Stats, TensorMeta
from msprobe_core.monitor.alarms import Alarms
from msprobe_core.monitor.coverage import Coverage
from msprobe_core.monitor.plan import Rule
from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitoring.quantities import Op, Quantity


def step_of(number, norm, name="up.weight"):
    step = Step(number)
    meta = TensorMeta("torch.Tensor", "torch.float32", (2,))
    digest = Digest(stats=None if norm is None else Stats(max=norm, min=norm, mean=norm, l2_norm=norm))
    step.add(Reading(Quantity.GRADIENT_REDUCED, 0, name, None, meta, digest))
    return step


def test_turbulence_is_measured_against_the_running_mean_which_alarms_do_not_enter():
    alarms = Alarms([Rule(rule_name="AnomalyTurbulence", threshold=0.5)], [Op.NORM])
    values = [1.0, 1.4, 1.6, 100.0, 1.4, 0.01]
    assert [len(alarms.check(step_of(i, value))) for i, value in enumerate(values)] == [0, 0, 1, 1, 0, 0]


def test_nan_and_large_values_are_alarms_and_empty_tensors_are_not():
    alarms = Alarms([Rule(rule_name="AnomalyNan", threshold=10.0)], [Op.NORM])
    values = [1.0, math.nan, math.inf, -11.0, None]
    assert [len(alarms.check(step_of(i, value))) for i, value in enumerate(values)] == [0, 1, 1, 1, 0]


def test_what_was_expected_and_never_seen_is_told(tmp_path, caplog):
    names = frozenset({"0:up.weight", "0:down.weight"})
    expected = {Quantity.GRADIENT_REDUCED: names, Quantity.EXP_AVG: frozenset({"0:up"})}
    coverage = Coverage(lambda: expected, tmp_path)
    coverage.add(step_of(3, 1.0))
    coverage.close()
    assert "saw nothing of exp_avg in 1 steps" in caplog.text
    seen = json.loads((tmp_path / "coverage.json").read_text())["grad_reduced"]
    counts = {"expected": 2, "seen": 1, "finite": 1, "always": 1}
    assert seen == {**counts, "first_step": 3, "missing": ["0:down.weight"], "by_class": {"dense": counts}}
