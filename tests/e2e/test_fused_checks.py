"""Fused operators in a dump, recorded from kernels of another kind: right ones are right, and wrong ones are found."""

import json

import pytest
import torch
from bare_scripts import run_bare
from fused_training import NAMES, STAND_IN, import_stand_in, record

from msprobe_core.api_check.dump_check import check_dump
from msprobe_core.api_check.reproducer import MOST_LINES
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.cli import main


@pytest.fixture
def npu(monkeypatch):
    return import_stand_in(monkeypatch)


def verdicts(place, npu, dtype):
    unit = record(place, npu, dtype)
    return {call.entry: call for call in check_dump(unit, workers=1) if call.entry.startswith("NPU.")}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_right_kernels(dtype, tmp_path, npu):
    found = verdicts(tmp_path, npu, dtype)
    assert {entry: call.verdict for entry, call in found.items() if call.verdict is not Verdict.RIGHT} == {}
    names = {f"NPU.{name}.0.{phase}" for name in NAMES for phase in ("forward", "backward")}
    assert found.keys() == names
    assert len(found["NPU.npu_fusion_attention.0.forward"].outputs) >= 3  # maxima and sums too


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_wrong_kernels(dtype, tmp_path, npu, monkeypatch):
    monkeypatch.setattr(npu.RmsNorm, "epsilon_factor", 1e4)
    monkeypatch.setattr(npu.Attention, "drops_last_key", True)
    found = verdicts(tmp_path, npu, dtype)
    wrong = {entry for entry, call in found.items() if call.verdict is Verdict.WRONG}
    assert wrong == {
        "NPU.npu_rms_norm.0.forward",
        "NPU.npu_fusion_attention.0.forward",
        "NPU.npu_fusion_attention.0.backward",
    }


def status_of(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    return ended.value.code


def script(unit, entry, place):
    """Write the script of a call by the command, and return its path and the exit status."""
    status = status_of("acc_check", "-api_info", unit / "dump.json", "--script", entry, "-o", place)
    return place / f"{entry}.py", status


LONGER = {("npu_fusion_attention", "backward"): 100}
"""Attention rounds in its backward as well, so the script has both of its directions."""


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("name", NAMES)
def test_scripts_carry_their_formula(name, phase, tmp_path, npu):
    unit = record(tmp_path / "dump", npu, torch.bfloat16)
    path, status = script(unit, f"NPU.{name}.0.{phase}", tmp_path / "scripts")
    text = path.read_text()
    assert status == 0
    assert "msprobe" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    bare = run_bare(path)
    assert (bare.returncode, bare.stderr) == (0, ""), bare
    assert "WRONG" not in bare.stdout
    assert "only --device cpu" in bare.stdout  # the operator is not here
    # On any device but "cpu" itself the operator is called: here, that of the stand-in.
    with_operator = run_bare(path, "--device", "cpu:0", packages=[STAND_IN])
    assert (with_operator.returncode, with_operator.stderr) == (0, "")
    assert "cpu:0    0: right" in with_operator.stdout
    assert text.count("\n") <= LONGER.get((name, phase), MOST_LINES)


@pytest.mark.slow
def test_scripts_without_the_operator_cannot_ask_a_device(tmp_path, npu):
    unit = record(tmp_path / "dump", npu, torch.float32)
    path, _ = script(unit, "NPU.npu_swiglu.0.forward", tmp_path / "scripts")
    found = run_bare(path, "--device", "cpu:0")
    assert found.returncode == 2
    assert "recorded 0: right" in found.stdout
    assert "could not run" in found.stderr


@pytest.mark.parametrize(
    "entry",
    [
        "NPU.npu_rms_norm.0.forward",
        pytest.param("NPU.npu_fusion_attention.0.forward", marks=pytest.mark.slow),
        pytest.param("NPU.npu_fusion_attention.0.backward", marks=pytest.mark.slow),
    ],
)
def test_scripts_of_wrong_kernels(entry, tmp_path, npu, monkeypatch):
    monkeypatch.setattr(npu.RmsNorm, "epsilon_factor", 1e4)
    monkeypatch.setattr(npu.Attention, "drops_last_key", True)
    unit = record(tmp_path / "dump", npu, torch.float32)
    path, status = script(unit, entry, tmp_path / "scripts")
    assert status == 1
    found = run_bare(path, "--device", "cpu:0", packages=[STAND_IN])  # of which the kernels are right there
    assert (found.returncode, found.stderr) == (1, "")
    assert "recorded 0: WRONG" in found.stdout
    assert "cpu:0    0: right" in found.stdout


@pytest.mark.slow
def test_scripts_of_published_standards(tmp_path, npu):
    unit = record(tmp_path / "dump", npu, torch.float32)
    config = tmp_path / "config_op.json"
    given = {"dump_json_path": str(unit / "dump.json"), "extract_api_path": str(tmp_path / "api.json")}
    config.write_text(json.dumps(given | {"api_name": "NPU.npu_rms_norm.0", "propagation": "backward"}))
    assert status_of("op_generate", "-i", config, "-o", tmp_path / "scripts") == 0
    (path,) = (tmp_path / "scripts").glob("*.py")
    found = run_bare(path, "--device", "cpu:0", packages=[STAND_IN])
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    assert "Verdict: pass" in found.stdout
