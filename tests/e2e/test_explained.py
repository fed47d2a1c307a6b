"""Trainings that differ in one setting: the fault is found, and manifests name the setting that explains it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from configured_runs import PLANTED, record

from msprobe_core.cli.locate import locate as command
from msprobe_core.config_check.differences import Severity
from msprobe_core.locate import FaultKind, LocateVerdict, locate
from msprobe_core.locate.explain import read_located
from msprobe_core.locate.result import CheckState, Degree
from msprobe_core.view.suspects import read_location

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("close_debugger")]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """Recorded golden runs, by the settings that a plant gives to both sides."""
    runs = {}

    def golden(planted):
        key = repr(planted.both)
        if key not in runs:
            runs[key] = record(tmp_path_factory.mktemp("golden"), planted, is_target=False)
        return runs[key]

    return golden


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_setting_is_named_first(name, tmp_path, golden):
    planted = PLANTED[name]
    result = locate(record(tmp_path / "target", planted, is_target=True), golden(planted))
    assert (result.verdict is LocateVerdict.FAULT) == planted.faulty
    found = result.configuration
    telling = [each for each in found.explained if each.difference.severity is not Severity.INFO]
    assert (found.check.state is CheckState.DIFFERS) == bool(planted.expected)
    assert bool(telling) == bool(planted.expected)
    if planted.expected:
        assert telling[0].difference.path.endswith(planted.expected)
    if planted.expected and planted.faulty:
        assert telling[0].explanation.degree is Degree.YES
        assert found.cause is telling[0]


def test_the_command_says_so_first_last_and_in_its_file(tmp_path, golden):
    planted = PLANTED["rope base"]
    target = record(tmp_path / "target", planted, is_target=True)
    done = CliRunner().invoke(
        command, [str(target), str(golden(planted)), "-o", str(tmp_path / "out")], standalone_mode=False
    )
    assert done.return_value == 1
    lines = done.output.splitlines()
    said = "config.rope_parameters.rope_theta: 500000 / 10000; explains it: it sets the angles of rotary embeddings"
    assert lines[0] == f"The runs were configured differently: {said}."
    assert lines[-1].startswith("FAULT: computation at step 0: Module.model.rotary_emb.")
    assert lines[-1].endswith(f"; the configurations differ: {said}.")
    assert any(line.startswith("   Next: make this equal in both runs") for line in lines)
    content = json.loads((tmp_path / "out" / "locate.json").read_text())
    first = content["configuration"]["differences"][0]
    assert (first["section"], first["target"], first["golden"], first["explains"]) == (
        "model",
        500000.0,
        10000.0,
        "yes",
    )
    assert read_located(tmp_path / "out" / "locate.json").entry == content["suspects"][0]["entry"]
    assert read_location(tmp_path / "out" / "locate.json").configuration is not None


def test_other_settings_do_not_change_the_exit_status_of_runs_that_agree(tmp_path, golden):
    planted = PLANTED["implementation of attention"]
    target = record(tmp_path / "target", planted, is_target=True)
    done = CliRunner().invoke(
        command, [str(target), str(golden(planted)), "-o", str(tmp_path / "out")], standalone_mode=False
    )
    assert done.return_value == 0
    assert "configuration       differs" in done.output
    assert done.output.splitlines()[-1] == "AGREE: rounding explains every difference."


def test_other_data_and_seeds_are_advised_on(tmp_path, golden):
    for name, kind, said in (
        ("other samples", FaultKind.INPUT_DATA, "1 of 3 samples"),
        ("seed", FaultKind.RANDOMNESS, "seeded with 2 instead of 1"),
    ):
        planted = PLANTED[name]
        result = locate(record(tmp_path / name, planted, is_target=True), golden(planted))
        assert result.suspects[0].kind is kind
        assert said in result.suspects[0].advice.text


def test_config_check_lists_what_explains_the_located_fault_first(tmp_path, golden):
    from msprobe_core.cli.config_check import config_check

    planted = PLANTED["rope base"]
    sides = [str(golden(planted)), str(record(tmp_path / "target", planted, is_target=True))]
    CliRunner().invoke(command, [*reversed(sides), "-o", str(tmp_path / "out")], standalone_mode=False)
    asked = ["--explain", str(tmp_path / "out" / "locate.json"), *sides, "-o", str(tmp_path / "checked")]
    done = CliRunner().invoke(config_check, asked, standalone_mode=False)
    assert done.return_value == 1
    first = next(line for line in done.output.splitlines() if line.startswith("  "))
    assert "config.rope_parameters.rope_theta" in first
    assert "explains it" in first
