"""What a plugin promises to the training monitor, as tests that each plugin with a `MonitoringFramework` inherits."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from msprobe_core.errors import SessionError
from msprobe_core.monitor.collector import Collector
from msprobe_core.monitor.plan_file import OUTPUT_VARIABLE, load_plan
from msprobe_core.testing.contract_base import RiggedContract, bits_of
from msprobe_core.testing.rig import MonitoredRig

Array: TypeAlias = NDArray[Any]

_EVERYTHING = dict.fromkeys(("xy_distribution", "wg_distribution", "mv_distribution", "param_distribution"), True)
_EPS = 0.05
_NUM_STEPS = 3
_DECAYS = {"exp_avg": 0.9, "exp_avg_sq": 0.999}

Watch = Callable[..., Collector]
"""Begins to monitor a model and an optimizer, with settings of the monitor."""


class MonitorContract(RiggedContract[MonitoredRig]):
    """Inherit it, and provide the fixture ``rig``."""

    @pytest.fixture
    def watch(self, rig: MonitoredRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
        """Return a function that begins to monitor; its files are below ``tmp_path / "out"``."""
        monkeypatch.setenv(OUTPUT_VARIABLE, str(tmp_path / "out"))

        def begin(model: Any, optimizer: Any, **settings: Any) -> Collector:
            path = tmp_path / "monitor.json"
            ops = ["norm", "min", "max", "mean", "zeros", "nans"]
            path.write_text(json.dumps({"ops": ops, "eps": _EPS, "ndigits": 14, **_EVERYTHING, **settings}))
            return Collector(load_plan(path), rig.framework, [model], optimizer)

        return begin

    def test_values_are_those_that_numpy_computes(self, rig: MonitoredRig, watch: Watch, tmp_path: Path) -> None:
        """Parameters, their gradients and Adam's moments, in every step and by every operation."""
        states = _train(rig, watch)[1]
        moments = {quantity: _moments(states, decay, quantity) for quantity, decay in _DECAYS.items()}
        parameters = [name for name in states[0] if not name.endswith(".grad")]
        for step, name in [(step, name) for step in range(_NUM_STEPS) for name in parameters]:
            expected = {
                "grad_unreduced": states[step][f"{name}.grad"],
                "grad_reduced": states[step][f"{name}.grad"],
                "param_updated": states[step][name],
            }
            if step:  # before the first one, moments may not exist
                expected["param_origin"] = states[step - 1][name]
                expected |= {quantity: found[step][name] for quantity, found in moments.items()}
            for quantity, values in expected.items():
                # In float32, 1 - 0.999 is known to 1e-5 only.
                rel = 1e-4 if quantity in _DECAYS else 1e-6
                _assert_row(_row(tmp_path / "out", quantity, name, step), values, rel)

    def test_losses_and_weights_are_bitwise_unchanged(self, rig: MonitoredRig, watch: Watch) -> None:
        """With and without the monitor, in steps that are collected and in others."""
        losses, states = _train(rig, watch, step_interval=2)
        bare_losses, bare_states = _train(rig, None)
        assert [loss.hex() for loss in losses] == [loss.hex() for loss in bare_losses]
        for state, bare in zip(states, bare_states, strict=True):
            assert bits_of(state) == bits_of(bare)

    def test_everything_is_seen(self, rig: MonitoredRig, watch: Watch, tmp_path: Path) -> None:
        """Every parameter in every quantity, and modules with their gradients."""
        _train(rig, watch)
        (path,) = (tmp_path / "out").glob("*/coverage.json")
        coverage = json.loads(path.read_text())
        assert len(coverage) == 8
        for quantity, found in coverage.items():
            assert found["seen"] == found["finite"] > 0, quantity
            assert found["expected"] in (None, found["seen"]), quantity

    @pytest.mark.parametrize("settings", [{}, {"xy_distribution": False}, {"start_step": 1000}], ids=str)
    def test_nothing_is_left_behind(self, rig: MonitoredRig, watch: Watch, settings: Mapping[str, Any]) -> None:
        """After the end, and in steps that are not selected, nothing is hooked in the model or patched elsewhere."""
        model = rig.make_model(3)
        optimizer = rig.make_adam(model)
        rig.train_with(model, optimizer, 0)
        before = rig.traces_in(model)
        monitor = watch(model, optimizer, **settings)
        rig.train_with(model, optimizer, 1)
        if settings.get("start_step"):
            assert rig.traces_in(model) == before
        monitor.close()
        assert rig.traces_in(model) == before

    def test_a_wrong_optimizer_or_model_is_a_clear_error(self, rig: MonitoredRig, watch: Watch) -> None:
        """Both are named."""
        model = rig.make_model(3)
        with pytest.raises(SessionError, match="the optimizer object"):
            watch(model, object())
        with pytest.raises(SessionError, match="no model of"):
            watch(object(), rig.make_adam(model))


def _train(rig: MonitoredRig, watch: Watch | None, **settings: Any) -> tuple[list[float], list[Mapping[str, Array]]]:
    """Return the losses of some steps, and the state after each."""
    model = rig.make_model(3)
    optimizer = rig.make_adam(model)
    monitor = None if watch is None else watch(model, optimizer, **settings)
    losses: list[float] = []
    states: list[Mapping[str, Array]] = []
    for step in range(_NUM_STEPS):
        losses.append(rig.train_with(model, optimizer, step))
        states.append(rig.state_of(model))
    if monitor is not None:
        monitor.close()
    return losses, states


def _moments(states: list[Mapping[str, Array]], decay: float, quantity: str) -> list[dict[str, Array]]:
    """Return a moment of all parameters before each step: Kingma and Ba, *Adam*, 2015, algorithm 1."""
    gradients = [{name[:-5]: values for name, values in state.items() if name.endswith(".grad")} for state in states]
    moments = [{name: np.zeros(values.shape) for name, values in gradients[0].items()}]
    for of_step in gradients:
        powers = {
            name: np.float64(values) ** (2 if quantity == "exp_avg_sq" else 1) for name, values in of_step.items()
        }
        moments.append({name: decay * moments[-1][name] + (1 - decay) * value for name, value in powers.items()})
    return moments


def _row(directory: Path, quantity: str, name: str, step: int) -> Mapping[str, str]:
    """Return the only row of a parameter in a step."""
    (path,) = directory.glob(f"*/{quantity}_{step}-{step}.csv")
    with path.open(newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if row["name"] == name]
    return row


def _assert_row(row: Mapping[str, str], values: Array, rel: float) -> None:
    wide = np.float64(values)
    expected = {
        "norm": np.sqrt(np.square(wide).sum()), "min": wide.min(), "max": wide.max(), "mean": wide.mean(),
        "zeros": (np.abs(wide) < _EPS).mean(), "nans": np.isnan(wide).sum(),
    }  # fmt: skip
    assert row["shape"] == str(list(values.shape))
    for op, value in expected.items():
        assert float(row[op]) == pytest.approx(value, rel=rel, abs=1e-8), (row["name"], row["step"], op)
