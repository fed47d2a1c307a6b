"""Level L2 on the CPU: MindSpore dumps its kernels, as told, and two such dumps are compared."""

import json
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from typing import NamedTuple

import mindspore as ms
import msprobe.mindspore
import polars as pl
import pytest

import msprobe_core
from msprobe_core.cli import main
from msprobe_core.errors import ConfigError
from msprobe_core.store.manifest_file import find_manifest, read_manifest
from msprobe_core.store.reading import read_dump

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "support" / "kernel_training.py"
TASK = {"task": "tensor", "level": "L2"}
NORM = "Default_network-WithLossCell__backbone-Net_norm-LayerNorm_LayerNorm-op0.0"


class Run(NamedTuple):
    """A run that has ended: where its kernels are, what it printed, and what was said of it."""

    root: Path
    losses: str
    log: str


def write_config(root, **fields):
    path = root.parent / f"{root.name}.json"
    path.write_text(json.dumps({**TASK, "dump_path": str(root), **fields}))
    return path


def begin(root, *command):
    (root.parent / f"{root.name}_cwd").mkdir()
    environment = {**os.environ, "GLOG_v": "3", "COVERAGE_PROCESS_START": ""}
    environment.pop("MINDSPORE_DUMP_CONFIG", None)
    return Popen(
        [sys.executable, *map(str, command)],
        cwd=root.parent / f"{root.name}_cwd", env=environment, text=True, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """With the command; with a debugger, and a fault; of chosen kernels; with a debugger too late; without any dump."""
    top = tmp_path_factory.mktemp("kernels")
    options = {"list": ["LayerNorm", "name-regex(.*first-Dense.*MatMul.*)"], "data_mode": ["output"]}
    configs = {name: write_config(top / name) for name in ("golden", "target")}
    configs["chosen"] = write_config(top / "chosen", step=[6], tensor=options)
    configs["late"] = write_config(top / "late")
    command = ("-m", "msprobe_core", "kernel-dump", configs["golden"], "--", sys.executable)
    processes = {
        "golden": begin(top / "golden", *command, PROGRAM, "1e-5"),
        "target": begin(top / "target", PROGRAM, "0.1", configs["target"]),
        "chosen": begin(top / "chosen", PROGRAM, "1e-5", configs["chosen"], "5"),
        "late": begin(top / "late", PROGRAM, "1e-5", configs["late"], "late"),
        "plain": begin(top / "plain", PROGRAM, "1e-5"),
    }
    ended = {}
    for name, process in processes.items():
        losses, log = process.communicate(timeout=600)
        assert process.returncode == 0, log
        ended[name] = Run(top / name, losses, log)
    return ended


def compare(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, arguments)])
    return ended.value.code, capsys.readouterr().out


def test_the_process_has_a_manifest_beside_its_kernels(runs):
    """Which a program without a debugger has not."""
    path = find_manifest(runs["target"].root / "rank_0" / "Net" / "0" / "1")
    assert path == runs["target"].root / "rank_0" / "manifest.json"
    manifest = read_manifest(path)
    assert manifest.notes == ()
    assert manifest.run.switches["mode"] == "GRAPH"
    assert runs["target"].losses != runs["golden"].losses == runs["chosen"].losses
    assert not list(runs["golden"].root.rglob("manifest.json"))


def test_the_training_is_the_same_and_every_kernel_of_both_steps_is_there(runs):
    golden = runs["golden"]
    assert golden.losses == runs["plain"].losses
    assert f"msprobe: kernels are dumped to {golden.root}" in golden.log
    assert sorted(path.name for path in (golden.root / "rank_0" / "Net" / "0").iterdir()) == ["0", "1"]
    dump = read_dump(golden.root / "rank_0" / "Net" / "0" / "1")
    assert dump.notes == []
    entries = dump.frame["entry"].unique(maintain_order=True).to_list()
    kernels = [entry.rpartition("_")[2].partition("-")[0] for entry in entries if not entry.startswith("Parameter.")]
    assert kernels[:5] == ["MatMul", "BiasAdd", "LayerNorm", "ReLU", "MatMul"]
    assert {"SGD", "LayerNormGrad", "BiasAddGrad"} <= set(kernels)
    shapes = dict(dump.frame.select("key", "shape").rows())
    assert (shapes[f"{NORM}.input.0"], shapes[f"{NORM}.output.0"]) == ("[3, 8]", "[3, 8]")


def test_a_debugger_in_the_program_dumps_what_is_chosen(runs):
    chosen = runs["chosen"]
    assert chosen.losses == runs["plain"].losses
    assert "no kernel was dumped" not in chosen.log
    (step,) = (chosen.root / "rank_0" / "Net" / "0").iterdir()
    assert step.name == "6"
    kernels = [
        path.name.split(".")[1].rpartition("_")[2] for path in step.glob("*.output.*") if "Param" not in path.name
    ]
    assert {"LayerNorm-op0", "MatMul-op0"} <= set(kernels)
    assert all(kernel.startswith(("LayerNorm", "MatMul")) for kernel in kernels)
    assert list(step.glob("*.input.*")) == []


def test_a_debugger_that_comes_too_late_says_so_and_does_not_disturb(runs):
    late = runs["late"]
    assert late.losses == runs["plain"].losses
    assert f"no kernel was dumped to {late.root / 'rank_0'}" in late.log
    assert "or start the program with `msprobe kernel-dump CONFIG -- python train.py`" in late.log


def test_the_first_kernel_that_differs_is_named_with_its_line(runs, tmp_path, capsys):
    given = ("-tp", runs["target"].root, "-gp", runs["golden"].root)
    code, text = compare(capsys, *given, "-o", tmp_path / "out", "--rank", "0", "--step", "0")
    assert code == 1
    lines = text.splitlines()
    assert lines[-1] == f"DIFFERENT: first at {NORM}."
    place = lines.index(f"First fault: {NORM}")
    assert lines[place + 1].strip() == "Its input tensors agree, its parameters and its output do not."
    assert lines[place + 2].strip().startswith(f"{NORM}.input.5  error: the relative error")  # its epsilon
    assert any(PROGRAM.name in line and "self.last(ops.relu(self.norm(self.first(x))))" in line for line in lines)
    assert compare(capsys, *given, "-o", tmp_path / "both")[1].splitlines()[-1] == (
        f"DIFFERENT: first at step0/rank0: {NORM}."
    )
    table = pl.read_csv(next((tmp_path / "out" / "step0").glob("*.csv")))
    wrong = table.filter(pl.col("verdict") == "error")["target_name"].to_list()
    assert wrong[0].startswith(NORM)
    assert f"{NORM}.output.0" in wrong


def test_a_run_agrees_with_itself(runs, tmp_path, capsys):
    root = runs["golden"].root
    code, text = compare(capsys, "-tp", root, "-gp", root, "-o", tmp_path / "out", "--ranks", "0")
    assert (code, text.splitlines()[-1]) == (0, "AGREE: every row is matched and within its limit.")


def test_statistics_are_refused_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.delenv("MINDSPORE_DUMP_CONFIG", raising=False)
    expected = "on the CPU MindSpore dumps whole tensors of kernels and no statistics; set the task 'tensor'"
    with pytest.raises(ConfigError, match=expected):
        msprobe.mindspore.PrecisionDebugger(dump_path=tmp_path, level="L2")
    debugger = msprobe_core.PrecisionDebugger(dump_path=tmp_path, level="L2")
    try:
        with pytest.raises(ConfigError, match=expected):
            debugger.start(ms.nn.ReLU())
    finally:
        debugger.close()
    assert "MINDSPORE_DUMP_CONFIG" not in os.environ
