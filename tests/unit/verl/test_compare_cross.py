"""``msprobe verl compare cross``: a fault moves with the component that has it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from rl_runs import Recipe, make_weights, write_run

from msprobe_core.rl.cross_outcome import CELLS, Component, component_at_fault, shares

Run = Callable[..., tuple[int, str, str]]
NAME = "model.layers.0.self_attn.o_proj.weight"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """Record four runs, with a fault in one component of B."""

    def four(fault: str) -> dict[str, Path]:
        root = tmp_path_factory.mktemp("cross")
        wrong = make_weights()
        wrong[NAME] = wrong[NAME] * 1.1
        common = {"task": "statistics", "steps": 1}
        a = {**common, "weights": make_weights()}
        trainer = {**a, "weights": wrong if fault == "training" else a["weights"]}
        shift = 1 if fault == "rollout" else 0
        # Rollouts come with their log-probs, which a replay does not compute again.
        own, other = Recipe(**a), Recipe(**a, shift=shift, seed=5)
        write_run(root / "aa", own)
        write_run(root / "drawn by b", other)
        for cell, drawn, how in (("ab", own, trainer), ("ba", other, a), ("bb", other, trainer)):
            write_run(root / cell, Recipe(**how, replay=drawn.recorded, keeps_log_probs=True))
        return {cell: root / cell for cell in CELLS}

    return four


def cross(run: Run, runs: dict[str, Path], output: Path) -> tuple[int, str, str]:
    return run("verl", "compare", "cross", *(x for cell in CELLS for x in (f"--{cell}", runs[cell])), "-o", output)


@pytest.mark.parametrize(
    ("fault", "component"), [("none", Component.NONE), ("rollout", Component.ROLLOUT), ("training", Component.TRAINING)]
)
def test_the_component_at_fault_is_named(
    run: Run, record: Callable[[str], dict[str, Path]], tmp_path: Path, fault: str, component: Component
) -> None:
    code, out, _ = cross(run, record(fault), tmp_path)
    assert code == (0 if component is Component.NONE else 1), out
    own = json.loads((tmp_path / "verl_cross.json").read_bytes())["numbers"]["steps"]["1"]
    assert own["half"] == component.value
    if component is not Component.NONE:
        assert own["of_training" if component is Component.TRAINING else "of_rollout"] > 0.9
        assert f"at fault: {component.value}." in out.splitlines()[-1]


def test_runs_that_replay_nothing_are_refused(
    run: Run, record: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    runs = record("none")
    code, _, err = cross(run, runs | {"ab": runs["bb"]}, tmp_path)
    assert code == 2
    assert "whose rollouts it should replay" in err


def test_patterns_of_four() -> None:
    def component(*cells: bool) -> Component:
        return component_at_fault(dict(zip(CELLS, cells, strict=True)))

    assert component(False, True, True, False) is Component.WEIGHTS
    assert component(False, True, True, True) is Component.BOTH
    assert component(False, False, False, True) is Component.BOTH
    assert component(True, True, True, True) is Component.TRUSTED
    assert shares(dict(zip(CELLS, (1.0, 1.0, math.e, math.e), strict=True))) == (1.0, 0.0)
    assert shares(dict.fromkeys(CELLS, 1.0)) == (0.0, 0.0)
