"""The page for users of mindstudio-probe: it lists what they know, and what it says of verdicts is so."""

import json
import math
import re
from pathlib import Path

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.cli import main
from msprobe_core.config import load_config
from msprobe_core.config.schema import CommonFields, TaskOptions

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
COMMANDS = {
    "compare", "acc_check", "multi_acc_check", "merge_result", "overflow_check", "config_check", "parse", "data2db",
    "api_precision_compare", "graph_visualize", "offline_dump", "install_deps", "run_ut", "multi_run_ut", "graph",
    "run_overflow_check", "code_mapping", "op_generate", "nan_analyze",
}  # fmt: skip
COLUMNS = {
    "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape", "NPU MD5",
    "NPU Requires_grad", "Bench Requires_grad", "Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr",
    "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr", "NPU max", "NPU min", "NPU mean", "NPU l2norm",
    "Bench max", "Bench min", "Bench mean", "Bench l2norm", "Requires_grad Consistent", "Result", "Err_message",
    "NPU_Stack_Info", "BENCH MD5", "Cosine", "EucDist", "MaxAbsErr", "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio", "Data_name",
}  # fmt: skip
LINEAR, GELU = "Module.fc.Linear.forward.0", "Functional.gelu.0.forward"
X = [1.0, -2.0, 3.0]


def first_cells(heading):
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| (.*?) \|", section, re.MULTILINE)
    return {name: status for cell, status in rows for name in re.split(r"[,;] (?:and )?", cell)}


def test_each_command_and_each_column_is_there():
    names = {word for cell in first_cells("Commands, one by one") for word in re.findall(r"[a-z0-9_]+", cell)}
    assert names >= COMMANDS
    assert {name.removesuffix(" (8.x)") for name in first_cells("Columns of the table")} >= COLUMNS


def test_fields_that_are_the_same_are_fields_here():
    given = first_cells("config.json, field by field")
    ours = {*CommonFields.__struct_fields__, *TaskOptions.__struct_fields__}
    same = {name.removesuffix(" in the block") for name, status in given.items() if status in {"same", "better"}}
    assert same - {"level L2"} <= ours


@pytest.mark.parametrize("field", ["enable_dataloader", "is_deterministic", "seed"])
def test_fields_that_are_accepted_are_no_errors(tmp_path, caplog, field):
    (tmp_path / "config.json").write_text(json.dumps({field: True}))
    assert load_config(tmp_path / "config.json").level == "L1"
    assert field in caplog.text


def infinite(largest, smallest):
    return tensor(X, Max=largest, Min=smallest, Norm=math.inf)


VERDICTS = {
    "a call that only one side makes": (
        {GELU: api(tensor(X), output=tensor(X))} | {"Torch.abs.0.forward": api(output=tensor(X))},
        {GELU: api(tensor(X), output=tensor(X))},
        ("Torch.abs.0.forward.output.0", "unmatched"),
    ),
    "bfloat16 against float32, otherwise healthy": (
        {GELU: api(tensor(X, dtype="torch.bfloat16"), output=tensor([1.001, -2.0, 3.0], dtype="torch.bfloat16"))},
        {GELU: api(tensor(X), output=tensor(X))},
        (f"{GELU}.output.0", "pass"),
    ),
    "a weight that is wrong": (
        {LINEAR: api(tensor(X), output=tensor([3.0, -6.0, 9.0])) | {"parameters": {"weight": tensor([3.0])}}},
        {LINEAR: api(tensor(X), output=tensor(X)) | {"parameters": {"weight": tensor([1.0])}}},
        (f"{LINEAR}.parameters.weight", "error"),
    ),
    "an output 15 % off, equal inputs": (
        {GELU: api(tensor(X), output=tensor([1.15, -2.3, 3.45]))},
        {GELU: api(tensor(X), output=tensor(X))},
        (f"{GELU}.output.0", "error"),
    ),
    "NaN or Inf in the golden run only, +Inf against -Inf": (
        {GELU: api(tensor(X), output=infinite("Infinity", -1.0))},
        {GELU: api(tensor(X), output=infinite(1.0, "-Infinity"))},
        (f"{GELU}.output.0", "error"),
    ),
    "`device` npu:0 against cuda:0": (
        {GELU: api(tensor(X), output=tensor(X), device={"type": "torch.device", "value": "npu:0"})},
        {GELU: api(tensor(X), output=tensor(X), device={"type": "torch.device", "value": "cuda:0"})},
        (f"{GELU}.input.device", "pass"),
    ),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_verdicts_are_those_of_the_page(tmp_path, capsys, case):
    target, golden, (row, verdict) = VERDICTS[case]
    stated = re.search(rf"^\| {re.escape(case)} \|.*\| `(\w+)`[^|]*\|$", PAGE, re.MULTILINE)
    assert stated is not None
    assert stated[1] == verdict
    for side, data in (("target", target), ("golden", golden)):
        write_dump(tmp_path / side / "rank0", data)
    sides = ["-tp", str(tmp_path / "target" / "rank0"), "-gp", str(tmp_path / "golden" / "rank0")]
    with pytest.raises(SystemExit):
        main(["compare", *sides, "-o", str(tmp_path / "out"), "--format", "jsonl"])
    (table,) = (tmp_path / "out").glob("*.jsonl")
    found = {entry["target_name"]: entry["verdict"] for entry in map(json.loads, table.read_text().splitlines())}
    assert found[row] == verdict
    capsys.readouterr()
