"""TRL's GRPOTrainer on the CPU, recorded by the example: a healthy run, and advantages of the other sign."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe_core.cli import main

pytest.importorskip("trl")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "trl_grpo"


def status_of(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_a_healthy_run_agrees_and_a_fault_is_named(tmp_path, capsys):
    done = subprocess.run(
        [sys.executable, EXAMPLE / "train.py", tmp_path], capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    run = tmp_path / "run"
    assert status_of("rl", "check", run, "-o", tmp_path) == 0, capsys.readouterr().out
    assert status_of("rl", "compare", "onpolicy", run, "-o", tmp_path) == 0
    assert "equal to the bit" in capsys.readouterr().out
    source = (EXAMPLE / "recorded_grpo.py").read_text()
    found = "batch = super()._generate_and_score_completions(inputs)"
    assert found in source
    wrong = 'batch["advantages"] = -batch["advantages"]'
    (tmp_path / "recorded_grpo.py").write_text(source.replace(found, f"{found}\n        {wrong}"))
    (tmp_path / "train.py").write_text(
        (EXAMPLE / "train.py").read_text().replace(
            "Path(__file__).resolve().parents[1]", f"Path({str(EXAMPLE.parent)!r})"
        )
    )  # fmt: skip
    subprocess.run(
        [sys.executable, tmp_path / "train.py", tmp_path / "faulty"], capture_output=True, check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert status_of("rl", "check", tmp_path / "faulty" / "run", "-o", tmp_path) == 1
    assert "with the other sign" in capsys.readouterr().out
