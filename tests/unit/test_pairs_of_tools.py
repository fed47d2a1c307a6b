"""One program recorded by mindstudio-probe and by us: every level and task; one kind with either side golden."""

import tarfile
from pathlib import Path

import pytest

from msprobe_core.compare import compare_dumps
from msprobe_core.locate import LocateVerdict, locate

DATA = Path(__file__).parents[1] / "data" / "mindstudio_probe"
KINDS = [f"{level}_{task}" for level in ("L0", "L1", "mix") for task in ("statistics", "md5", "tensor")]
DIRECTIONS = [("ours", "theirs"), ("theirs", "ours")]
BOTH_WAYS = "mix_statistics"
"""Compared in either direction; the other kinds with ours as target."""


def pairs(*more_kinds):
    """Return kind, target and golden of each comparison."""
    kinds = [*KINDS, *more_kinds]
    return [(kind, *sides) for kind in kinds for sides in DIRECTIONS[: 2 if kind == BOTH_WAYS else 1]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a function that returns the step that a tool recorded."""
    root = tmp_path_factory.mktemp("pairs")
    with tarfile.open(DATA / "26.2.0_and_ours.tar.xz") as archive:
        archive.extractall(root, filter="data")
    return lambda who, kind, run="healthy": root / who / kind / run / "step0"


@pytest.mark.parametrize(("kind", "target", "golden"), pairs("L0_uncalled", "mix_uncalled"))
def test_healthy_runs_agree(recorded, kind, target, golden):
    pair = recorded(target, kind), recorded(golden, kind)
    result = compare_dumps(*pair)
    assert result.agrees
    assert result.units[0].rows.filter(match="both").height > 20
    assert locate(*pair).verdict is LocateVerdict.AGREE


@pytest.mark.parametrize(("kind", "target", "golden"), pairs())
def test_a_fault_is_found_where_it_was_planted(recorded, kind, target, golden):
    """The target's LayerNorm has another epsilon."""
    expected = "Module.norm.LayerNorm.forward.0" if kind.startswith("L0") else "Functional.layer_norm.0.forward"
    pair = recorded(target, kind, "eps"), recorded(golden, kind)
    result = compare_dumps(*pair)
    assert result.differs
    assert result.first_fault[1].entry == expected
    found = locate(*pair)
    assert found.verdict is LocateVerdict.FAULT
    assert found.suspects[0].entry == expected


def test_gradients_without_a_number_are_suspects_of_another_program():
    """Release 8.3.3 names entries of parameters' gradients without one."""
    found = locate(DATA / "8.3.3_statistics" / "step0", DATA / "26.2.0_xor" / "step0")
    assert found.verdict is LocateVerdict.FAULT
    assert "Module.fc1.Linear.parameters_grad" in [suspect.entry for suspect in found.suspects]
