"""Scripts of op_generate: they run where msprobe is not, and print what published standards say."""

import json
import re

import pytest
import torch
from bare_scripts import run_bare
from torch.nn import functional
from wrong_kernels import FAULTS, train
from wrong_kernels import record as record_modules

from msprobe_core.api_check.op_generate_script import MOST_LINES
from msprobe_core.cli import main

FIELDS = [
    "Shape", "Dtype of out_device", "Dtype of out_bench", "Compare Standard", "Relative Error Ratio",
    "Absolute Error Ratio", "Small Value Error Proportion", "Maximum Relative Error", "Mean Relative Error",
    "Root Mean Squared Error", "Error Balance", "Inf/NaN Error Ratio", "Thousandth ratio", "Maximum ULP Error",
    "Mean ULP Error", "ULP Error Proportion", "Verdict",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _closed(close_debugger):
    return


def record(place, run, **config):
    return record_modules(place, run, **{"level": "L1"} | config)


def generate(tmp_path, unit, api_name, **fields):
    """Run the command as users do; return its exit status."""
    given = {"extract_api_path": str(tmp_path / "api.json"), "dump_json_path": str(unit / "dump.json")}
    config = tmp_path / "config_op.json"
    config.write_text(json.dumps(given | {"api_name": api_name} | fields))
    return run(config, tmp_path / "scripts")


def run(config, directory):
    with pytest.raises(SystemExit) as ended:
        main(["op_generate", "-i", str(config), "-o", str(directory)])
    return ended.value.code or 0


def script(tmp_path, unit, api_name, propagation="forward", **fields):
    assert generate(tmp_path, unit, api_name, propagation=propagation, **fields) == 0
    path = tmp_path / "scripts" / f"{api_name}.{propagation}.py"
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES + (10 if "iter_times" in fields else 0)
    assert max(map(len, text.splitlines())) < 2000 or "b64decode" in text
    assert "pickle" not in text
    assert "msprobe" not in "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return path


def parts_of(text):
    """Return the printed fields of each result by its title."""
    found = {}
    for block in text.split("--- ")[1:]:
        title, *lines = block.strip().splitlines()
        found[title] = dict(line.split(": ", 1) for line in lines)
    return found


def small(dtype):
    def run(debugger):
        torch.manual_seed(0)
        x = torch.randn(6, 16).to(dtype).requires_grad_()
        weight = torch.randn(8, 16).to(dtype).requires_grad_()
        with debugger.start():
            y = functional.linear(x, weight)
            y = functional.softmax(y, dim=-1)
            torch.sort(functional.embedding(torch.tensor([0, 3, 5]), y), dim=-1).values.square().sum().backward()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("propagation", ["forward", "backward"])
def test_scripts_print_the_published_fields(tmp_path, dtype, propagation):
    unit = record(tmp_path / "dump", small(dtype))
    for name in ("linear", "softmax"):
        real = script(tmp_path, unit, f"Functional.{name}.0", propagation, data_mode="real_data")
        found = run_bare(real)
        assert (found.returncode, found.stderr) == (0, ""), found.stdout
        sides = parts_of(found.stdout)
        assert {title.split()[0] for title in sides} == {"recorded", "cpu"}
        for fields in sides.values():
            assert list(fields) == FIELDS
            assert fields["Dtype of out_device"] == str(dtype).removeprefix("torch.")
            assert fields["Dtype of out_bench"] == "float64"
            assert fields["Compare Standard"] == "benchmark"
            assert re.search(r"pass, ratio", fields["Maximum Relative Error"])
        made = script(tmp_path, unit, f"Functional.{name}.0", propagation)
        found = run_bare(made)
        assert (found.returncode, found.stderr) == (0, "")
        assert {title.split()[0] for title in parts_of(found.stdout)} == {"cpu"}


@pytest.mark.slow
def test_each_iteration_has_inputs_of_its_own(tmp_path):
    unit = record(tmp_path / "dump", small(torch.bfloat16), task="statistics")
    for name, propagation in (("softmax", "backward"), ("embedding", "forward")):
        path = script(tmp_path, unit, f"Functional.{name}.0", propagation, iter_times=5)
        first, again = run_bare(path), run_bare(path)
        assert (first.returncode, first.stderr) == (0, "")
        assert first.stdout == again.stdout
        sides = parts_of(first.stdout)
        assert list(sides) == [f"cpu 0, iteration {number}" for number in range(5)]
        if name == "softmax":
            assert len({fields["Mean ULP Error"] for fields in sides.values()}) == 5
        assert not path.with_suffix(".safetensors").exists()


@pytest.mark.slow
def test_an_integer_result_is_compared_bit_by_bit(tmp_path):
    unit = record(tmp_path / "dump", small(torch.float32))
    path = script(tmp_path, unit, "Torch.sort.0", data_mode="real_data")
    found = run_bare(path)
    assert found.returncode == 0, found.stderr
    (indices,) = [fields for title, fields in parts_of(found.stdout).items() if title == "recorded 0.1"]
    assert indices["Compare Standard"] == "binary"
    assert indices["Error Rate"] == "0 pass"


QUICK = ("gradient", "scale")


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow) for each in FAULTS]
)
def test_a_result_of_a_wrong_kernel_is_an_error(tmp_path, fault):
    make, entry = FAULTS[fault]
    with make():
        unit = record(tmp_path / "dump", train(torch.float32))
    name, _, propagation = entry.rpartition(".")
    found = run_bare(script(tmp_path, unit, name, propagation, data_mode="real_data"))
    assert (found.returncode, found.stderr) == (1, "")
    sides = parts_of(found.stdout)
    assert sides["recorded 0"]["Verdict"] == "error"
    assert all(fields["Verdict"] == "pass" for title, fields in sides.items() if title.startswith("cpu"))


@pytest.mark.slow
def test_extracted_records_are_a_dump_of_their_own(tmp_path):
    unit = record(tmp_path / "dump", small(torch.float32))
    first = script(tmp_path, unit, "Functional.linear.0", "backward", data_mode="real_data").read_text()
    (tmp_path / "dump").rename(tmp_path / "elsewhere")
    config = tmp_path / "again.json"
    given = {"extract_api_path": str(tmp_path / "api.json"), "propagation": "backward", "data_mode": "real_data"}
    config.write_text(json.dumps(given))
    assert run(config, tmp_path / "again") == 0
    path = tmp_path / "again" / "Functional.linear.0.backward.py"

    def code(text):
        return [line for line in text.splitlines() if not line.startswith("#")]

    assert code(path.read_text()) == code(first)
    assert run_bare(path).returncode == 0


@pytest.mark.slow
def test_a_device_that_is_not_there_is_no_verdict(tmp_path):
    unit = record(tmp_path / "dump", small(torch.float32))
    found = run_bare(script(tmp_path, unit, "Functional.linear.0"), "--device", "meta:banana")
    assert found.returncode == 2
    assert "could not run" in found.stderr


def test_what_cannot_be_written_is_said_in_one_line(tmp_path, capsys):
    unit = record(tmp_path / "dump", small(torch.float32), task="statistics")
    capsys.readouterr()
    for name, fields, said in (
        ("Functional.linear.0", {"data_mode": "real_data"}, "set 'data_mode' to 'random_data'"),
        ("Functional.linearr.0", {}, "did you mean 'Functional.linear.0'"),
        ("Functional.embedding.0", {"propagation": "sideways"}, "'propagation' is 'sideways'"),
        ("Functional.embedding.0", {"propagations": "forward"}, "did you mean 'propagation'"),
    ):
        assert generate(tmp_path, unit, name, **fields) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1, err
