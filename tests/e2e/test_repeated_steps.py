"""Repetitions of several steps: what an optimizer makes of rounding is measured, and the training notices nothing."""

import logging

import polars as pl
import pytest
import torch
from in_kernel import InKernel
from msprobe.pytorch import PrecisionDebugger, calibration
from torch import nn

from msprobe_core.calibrate import calibrate
from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.judge.noise import load_noise
from msprobe_core.judge.noise.profile_file import NoiseProfile
from msprobe_core.locate import LocateOptions, LocateVerdict, locate

pytestmark = pytest.mark.usefixtures("close_debugger")

WIDTH, NUM_LAYERS, NUM_STEPS = 16, 4, 2


class Training:
    """Two steps of AdamW; each linear layer's result is off by ``jitter``, relative, as with another kernel."""

    def __init__(self, *, jitter=0.0, off=None):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1)) for _ in range(NUM_LAYERS)]
        self.model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.batches = torch.randn(NUM_STEPS, 8, WIDTH)
        self.off = off
        self.losses = []
        for module in self.model.modules():
            if jitter and isinstance(module, nn.Linear):
                by = 1 + jitter * torch.randn(module.out_features, generator=torch.Generator().manual_seed(5))
                module.register_forward_hook(
                    lambda _, __, out, by=by: InKernel.apply(out, lambda v: v * by, lambda g: g * by)
                )
        torch.manual_seed(1)

    def step(self, number, *, logs=True):
        self.optimizer.zero_grad()
        loss = self.model(self.batches[number]).square().mean()
        loss.backward()
        self.optimizer.step()
        if self.off:
            with torch.no_grad():
                self.model.get_parameter(self.off).mul_(1.002)
        if logs:
            self.losses.append(loss.item())

    def record(self, place, *, repeats=0, ends_last=True, fails_in=None, task="statistics"):
        """Record; with ``repeats`` the block repeats all steps, and ends the last of them, or leaves it open."""
        debugger = PrecisionDebugger(dump_path=place, level="mix", task=task)
        if repeats:
            with calibration(debugger, self.model, self.optimizer, repeats=repeats) as runs:
                for run in runs:
                    for number in range(NUM_STEPS):
                        if number and run.number == fails_in:
                            raise ArithmeticError("planted")
                        self.step(number, logs=run.is_golden)
                        if ends_last or number + 1 < NUM_STEPS:
                            debugger.step()
        else:
            for number in range(NUM_STEPS):
                with debugger.start(self.model):
                    self.step(number)
                debugger.step()
        debugger.close()
        return self


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    place = tmp_path_factory.mktemp("golden") / "run"
    Training().record(place, repeats=3)
    calibrate(place)
    return place


def look(target, golden):
    return locate(target, golden, LocateOptions(compare=CompareOptions(noise=load_noise(golden))))


def steps_of(place):
    return sorted(path.name for path in place.glob("step*"))


@pytest.mark.parametrize("ends_last", [True, False], ids=["the block ends the last step", "the program does, after it"])
def test_the_training_notices_nothing_of_repetitions(tmp_path, ends_last):
    bare = Training().record(tmp_path / "bare")
    repeated = Training().record(tmp_path / "run", repeats=2, ends_last=ends_last)
    assert repeated.losses == bare.losses
    for one, other in zip(repeated.model.parameters(), bare.model.parameters(), strict=True):
        assert torch.equal(one, other)
    states = [training.optimizer.state.values() for training in (repeated, bare)]
    for one, other in zip(*states, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("exp_avg", "exp_avg_sq", "step"))
    for place in ("run", "run/calibration/run1", "run/calibration/run2"):
        assert steps_of(tmp_path / place) == ["step0", "step1"], place
    for step in ("step0", "step1"):
        (one,), (other,) = ((tmp_path / run / step).iterdir() for run in ("run", "bare"))
        rows = compare_dumps(one, other).units[0].rows
        assert rows.height > 100
        assert rows.filter((pl.col("max_diff") != 0) | (pl.col("norm_diff") != 0)).is_empty()


def test_tensors_leave_no_empty_step_either(tmp_path):
    Training().record(tmp_path / "run", repeats=1, task="tensor")
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "run/calibration/run1") == ["step0", "step1"]


def test_a_repetition_that_fails_in_its_second_step_leaves_the_first(tmp_path, caplog):
    bare = Training().record(tmp_path / "bare")
    with caplog.at_level(logging.WARNING):
        failed = Training().record(tmp_path / "run", repeats=2, fails_in=1)
    assert "a repetition has failed (ArithmeticError: planted)" in caplog.text
    assert failed.losses == bare.losses
    assert [path.parent.parent.name for path in (tmp_path / "run/calibration").rglob("dump.*")] == ["step0"]


def test_repetitions_begin_the_second_step_with_parameters_of_their_own(golden):
    profile = NoiseProfile(golden / "noise_profile.parquet")
    (first,), (second,) = ((golden / step).iterdir() for step in ("step0", "step1"))
    assert [profile.unit(unit).parameters_vary for unit in (first, second)] == [False, True]


def test_extremes_of_parameters_behind_an_update_have_no_bounds(golden):
    profile = NoiseProfile(golden / "noise_profile.parquet")
    for step, are_bounded in (("step0", True), ("step1", False)):
        (unit,) = (golden / step).iterdir()
        rows = profile.unit(unit).rows.filter(pl.col("name").str.contains(r"Linear\.forward\.0\.parameters\.weight"))
        assert rows.height == NUM_LAYERS + 1
        assert rows["max"].is_finite().all() is rows["min"].is_finite().all() is are_bounded
        assert rows["norm"].is_finite().all()


@pytest.mark.slow
def test_healthy_kernels_agree_and_a_parameter_that_is_hardly_another_is_named(golden, tmp_path):
    Training(jitter=2e-8).record(tmp_path / "healthy")
    found = look(tmp_path / "healthy", golden)
    assert found.verdict is LocateVerdict.AGREE, found.suspects[0]
    Training(jitter=2e-8, off="2.0.weight").record(tmp_path / "target")
    found = look(tmp_path / "target", golden)
    assert found.verdict is LocateVerdict.FAULT
    assert (found.suspects[0].step, found.suspects[0].module) == (1, "2.0")
