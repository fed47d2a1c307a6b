"""The difference of two engines over the steps of a training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from msprobe_core.rl import files
from msprobe_core.rl.drift import drift_of

Run = Callable[..., tuple[int, str, str]]
STEPS = range(1, 31)


def test_a_slow_growth_is_a_drift_and_its_size_is_estimated() -> None:
    random = np.random.default_rng(0)
    sizes = np.geomspace(0.011, 0.036, 30) * random.lognormal(0, 0.1, 30)
    found = drift_of(STEPS, sizes.tolist())
    assert found is not None
    assert found.is_over(2)
    assert not found.is_over(4)
    assert found.growth == pytest.approx(0.036 / 0.011, rel=0.3)


def test_no_trend_is_no_drift_in_a_thousand_trainings() -> None:
    alarms = 0
    for seed in range(1000):
        sizes = np.random.default_rng(seed).lognormal(-4, 0.5, 30)
        found = drift_of(STEPS, sizes.tolist())
        alarms += found is not None and found.is_over(2)
    assert alarms <= 2


def test_a_single_outlier_is_no_drift() -> None:
    sizes = [0.01] * 29 + [1.0]
    found = drift_of(STEPS, sizes)
    assert found is not None
    assert not found.is_over(2)


def test_few_steps_show_nothing() -> None:
    assert drift_of(range(7), [2.0**i for i in range(7)]) is None


def write(root: Path, sizes: np.ndarray) -> Path:
    """Record batches whose log-probs differ by a size that depends on the step."""
    files.save_run(root, files.RunInfo())
    for step, size in enumerate(sizes.tolist(), 1):
        random = np.random.default_rng(step)
        old = -3 - random.random((8, 16)).astype(np.float32)
        tensors = {
            "old_log_probs": old, "rollout_log_probs": old + size * random.standard_normal(old.shape).astype("f4"),
            "response_mask": np.ones(old.shape, np.int64),
        }  # fmt: skip
        samples = tuple(files.BatchRow(id=f"{step}{row}", prompt_id="") for row in range(8))
        files.save_batch(
            files.trainer_directory(root, step), files.BatchFile(version=1, step=step, rows=8, samples=samples), tensors
        )
    return root


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("drift") / "run", np.geomspace(0.011, 0.036, 30))


def test_a_drift_below_every_limit_ends_with_1(run: Run, drifting: Path, tmp_path: Path) -> None:
    command = ("verl", "compare", "logprob", drifting, "--dtype", "bfloat16", "-o", tmp_path)
    code, out, _ = run(*command)
    assert code == 1
    assert "the root mean square difference drifts from 0.011 to 0.036 nats over 30 steps" in out
    assert json.loads((tmp_path / "verl_logprob.json").read_bytes())["numbers"]["drift"]["growth"] > 3
    assert run(*command, "--max-growth", "5")[0] == 0
    assert run(*command, "--steps", "1-6")[0] == 0


def test_a_limit_ends_with_1(run: Run, drifting: Path, tmp_path: Path) -> None:
    command = ("verl", "compare", "logprob", drifting, "--dtype", "bfloat16", "--steps", "1-6", "-o", tmp_path)
    assert run(*command, "--limit", "0.02")[0] == 0
    code, out, _ = run(*command, "--limit", "0.01")
    assert code == 1
    assert "nats, is over the limit 0.01" in out.splitlines()[-1]
