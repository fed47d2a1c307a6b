"""How the monitor keeps its share of a training's time below a bound."""

import json

import pytest

from msprobe_core.monitor.governor import Governor, OwnTime
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.schedule import Schedule


class Training:
    """A training with a clock of its own: 10 ms a step, and what collecting costs."""

    def __init__(self, directory, bound, *, interval=1, step_ms=10.0):
        self.now = 0.0
        self.step_ms = step_ms
        self.own = OwnTime(lambda: self.now)
        self.schedule = Schedule(MonitorPlan(wg_distribution=True, step_interval=interval), 0)
        self.governor = Governor(self.schedule, self.own, bound, directory)
        self.collected = []
        self.step = 0
        self.path = directory / "overhead.json"

    def run(self, steps, cost_ms, recorded=()):
        for _ in range(steps):
            self.now += self.step_ms / 1e3
            is_collected = self.schedule.selects(self.step)
            with self.own:
                if is_collected:
                    self.collected.append(self.step)
                    with self.own:  # blocks inside of others count once
                        self.now += cost_ms / 1e3
                if self.step in recorded:
                    self.now += 60
                self.governor.end_step(self.step, is_collected=is_collected, is_recorded=self.step in recorded)
            self.step += 1
        self.governor.close()
        return json.loads(self.path.read_text())


def test_the_interval_doubles_until_the_share_is_below_the_bound(tmp_path, caplog):
    training = Training(tmp_path, 0.05)
    found = training.run(2000, cost_ms=4.0)
    # 4 ms in 8 steps of 10 ms are 4.8 %.
    (change,) = found["intervals"]
    assert (change["interval"], change["expected_share"]) == (8, pytest.approx(4 / 84))
    assert found["share"] == pytest.approx(0.0475, abs=0.002)
    assert found["num_steps"] == 1999
    assert found["collected_step_s"] == pytest.approx(0.014)
    assert found["other_step_s"] == pytest.approx(0.010)
    assert f"from step {change['step']} on, every 8. step is collected" in caplog.text
    assert all(step % 8 == 0 for step in training.collected if step >= change["step"])


def test_the_interval_narrows_again_but_not_below_the_users(tmp_path):
    training = Training(tmp_path, 0.05, interval=3)
    training.run(500, cost_ms=4.0)
    assert training.schedule.interval == 12
    training.run(1000, cost_ms=0.1)
    assert training.schedule.interval == 3
    training.run(1000, cost_ms=0.0)
    assert training.schedule.interval == 3


def test_a_share_near_the_bound_does_not_make_intervals_alternate(tmp_path):
    training = Training(tmp_path, 0.05)
    for cost_ms in (1.2, 0.9, 1.0, 0.95, 1.05) * 4:
        training.run(50, cost_ms)
    assert [change["interval"] for change in json.loads(training.path.read_text())["intervals"]] == [4]


def test_ranks_of_different_speed_share_the_steps_of_the_slowest(tmp_path):
    fast, slow = Training(tmp_path / "a", 0.05), Training(tmp_path / "b", 0.05)
    fast.run(200, cost_ms=1.0)
    slow.run(200, cost_ms=9.0)
    assert fast.schedule.interval < slow.schedule.interval
    assert {step for step in slow.collected if step >= 20} <= set(fast.collected)


def test_steps_that_an_alarm_has_recorded_do_not_count(tmp_path):
    found = Training(tmp_path, 0.5).run(100, cost_ms=1.0, recorded=(30, 31))
    assert (found["intervals"], found["num_steps"]) == ([], 97)
    assert found["training_s"] < 2


def test_a_training_whose_time_does_not_pass_is_no_error(tmp_path):
    assert Training(tmp_path, 0.02, step_ms=0.0).run(10, cost_ms=0.0)["share"] == 0
