"""Scripts of recorded calls: they run where msprobe is not, and say what the check says."""

import json

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from bare_scripts import run_bare
from replay_scripts import COMMAND, run_here
from replaying import call_of
from torch.nn import functional
from wrong_kernels import FAULTS, call, train
from wrong_kernels import record as record_modules

from msprobe_core import names
from msprobe_core.api_check.call_check import CallChecker
from msprobe_core.api_check.reproducer import MOST_LINES, write_reproducer
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.errors import ReplayError
from msprobe_core.model import Phase, ReplayTensor, SiteKind
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.recorded import RecordedCall, RecordedCalls
from msprobe_core.store.reading import read_dump


@pytest.fixture(autouse=True)
def _closed(close_debugger):
    return


def record(place, run, **config):
    return record_modules(place, run, **{"level": "L1"} | config)


def judged_calls(unit):
    """Yield the API calls of a dump that can be judged, with their verdicts."""
    calls = RecordedCalls(read_dump(unit), 1 << 24)
    checker = CallChecker(framework=replaying_framework("pytorch"), measures_power=False)
    for entry in calls.entries:
        site = names.parse_entry(entry)
        if site.kind is SiteKind.API and site.phase in (Phase.FORWARD, Phase.BACKWARD):
            recorded = calls.read(entry)
            if (verdict := checker.check(recorded)).verdict is not Verdict.CANNOT_TELL:
                yield recorded, verdict


def write(unit, entry, directory, **changes):
    (found,) = [found for found in judged_calls(unit) if found[0].entry == entry]
    options = {"command": COMMAND, "place": str(unit)} | changes
    return write_reproducer(*found, replaying_framework("pytorch"), directory, **options), found[1]


def llama(dtype):
    architecture = ARCHITECTURES["llama"]

    def run(debugger):
        model = architecture.build().to(dtype)
        with debugger.start(model):
            model(**architecture.batch()).loss.backward()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_scripts_of_all_calls_of_a_llama_say_what_the_check_says(tmp_path, monkeypatch, capsys, dtype):
    unit = record(tmp_path / "dump", llama(dtype))
    framework = replaying_framework("pytorch")
    phases = set()
    for recorded, verdict in judged_calls(unit):
        path = write_reproducer(recorded, verdict, framework, tmp_path / "scripts", command=COMMAND)
        text = path.read_text()
        assert path.name == f"{recorded.entry}.py"
        assert len(text.splitlines()) <= MOST_LINES, recorded.entry
        code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert "msprobe" not in code
        assert "pickle" not in text
        status = run_here(path, monkeypatch)
        said = capsys.readouterr()
        assert status == (1 if verdict.verdict is Verdict.WRONG else 0), f"{recorded.entry}\n{said.out}{said.err}"
        assert said.out.count("recorded ") == len(recorded.outputs)
        phases.add(recorded.site.phase)
    assert phases == {Phase.FORWARD, Phase.BACKWARD}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_result_of_a_wrong_kernel_is_wrong_where_the_kernel_is_right(tmp_path, fault):
    make, entry = FAULTS[fault]
    with make():
        unit = record(tmp_path / "dump", train(torch.float32))
    path, verdict = write(unit, entry, tmp_path / "scripts")
    assert verdict.verdict is Verdict.WRONG
    found = run_bare(path)
    assert (found.returncode, found.stderr) == (1, "")
    recorded, fresh = [line for line in found.stdout.splitlines() if " 0:" in line]
    assert recorded.startswith("recorded 0: WRONG")
    assert fresh.startswith("cpu      0: right")


@pytest.mark.slow
def test_what_is_large_is_in_a_file_for_the_owner(tmp_path):
    x, weight = torch.randn(40, 64).bfloat16(), torch.randn(30, 64).bfloat16()
    unit = record(tmp_path / "dump", call(functional.linear, x, weight))
    path, _ = write(unit, "Functional.linear.0.forward", tmp_path / "scripts")
    beside = path.with_suffix(".safetensors")
    assert [each.stat().st_mode & 0o777 for each in (path, beside)] == [0o600, 0o600]
    assert run_bare(path).returncode == 0
    beside.unlink()
    found = run_bare(path)
    assert found.returncode == 2
    assert "could not run: FileNotFoundError" in found.stderr


def test_the_file_is_what_safetensors_reads(tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    x = torch.randn(40, 64)
    unit = record(tmp_path / "dump", call(functional.relu, x))
    path, _ = write(unit, "Functional.relu.0.forward", tmp_path / "scripts")
    found = numpy_files.load_file(path.with_suffix(".safetensors"))
    assert np.array_equal(found["0"], x.numpy())
    assert np.array_equal(found["recorded 0"], x.relu().numpy())


@pytest.mark.slow
def test_a_device_that_is_not_there_is_no_verdict(tmp_path):
    unit = record(tmp_path / "dump", call(functional.relu, torch.randn(4)))
    path, _ = write(unit, "Functional.relu.0.forward", tmp_path / "scripts")
    found = run_bare(path, "--device", "meta:banana")
    assert found.returncode == 2
    assert "recorded 0: right" in found.stdout
    assert "could not run" in found.stderr


INDEX = (slice(None), 1, ..., None)
ODD = {
    "cast": lambda: torch.randn(3).bfloat16().float(),
    "dtype": lambda: functional.softmax(torch.randn(3).half(), dim=0, dtype=torch.float32),
    "slices": lambda: torch.randn(3, 4, 5)[INDEX],
    "list": lambda: torch.cat([torch.randn(2), torch.randn(3)], dim=0),
    "named": lambda: torch.randn(3, 4).max(dim=1),
    "several": lambda: torch.chunk(torch.randn(8), 3),
    "one": lambda: torch.chunk(torch.randn(8), 1),
    "complex": lambda: torch.fft.fft(torch.randn(8)),
    "float8": lambda: torch.randn(8).to(torch.float8_e4m3fn).to(torch.float32),
    "empty": lambda: torch.relu(torch.randn(0, 3)),
    "scalar": lambda: torch.add(torch.tensor(2.0), float("inf")),
    "written": lambda: torch.randn(5).__setitem__(1, 7.0),
    "index": lambda: torch.sort(torch.randn(40)),
    "nan": lambda: torch.log(torch.tensor([-1.0, 0.0, 1.0])),
    "overflow": lambda: torch.tensor([300.0, 1.0], dtype=torch.float16).square(),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_arguments_and_results_of_all_kinds_are_written(tmp_path, monkeypatch, make):
    torch.manual_seed(0)
    unit = record(tmp_path / "dump", call(make))
    found = list(judged_calls(unit))
    assert found
    for recorded, verdict in found:
        path = write_reproducer(recorded, verdict, replaying_framework("pytorch"), tmp_path, command=COMMAND)
        assert run_here(path, monkeypatch) == (verdict.verdict is Verdict.WRONG)


def test_gradients_of_functions_that_write_to_their_arguments(tmp_path, monkeypatch):
    def run(debugger):
        x = torch.randn(6, requires_grad=True)
        with debugger.start():
            y = x * 2
            y.mul_(torch.full((6,), 1.5))
            functional.relu(y, inplace=True)
            torch.max(y.reshape(2, 3), dim=1).values.sum().backward()

    unit = record(tmp_path / "dump", run)
    found = [(each, verdict) for each, verdict in judged_calls(unit) if each.site.phase is Phase.BACKWARD]
    assert {each.site.path for each, _ in found} >= {"mul_", "relu", "max"}
    for recorded, verdict in found:
        path = write_reproducer(recorded, verdict, replaying_framework("pytorch"), tmp_path, command=COMMAND)
        assert run_here(path, monkeypatch) == 0, path.read_text()


BELOW = {
    "function": ("Aten.mul", [torch.randn(6, 5), torch.randn(5)]),
    "formula": ("Aten._softmax", [torch.randn(6, 5), 1, False]),
    "backward": ("AtenBackward._softmax_backward_data", [X := torch.rand(6, 5), X / 2, 1, torch.float32]),
    "stand-in": ("Functional.one_hot", [torch.tensor([0, 3, 2]), 4]),
}


@pytest.mark.parametrize("call", BELOW.values(), ids=BELOW)
def test_operators_that_are_replayed_as_formulas(tmp_path, monkeypatch, call):
    name, args = call
    given, framework = call_of(name, args), replaying_framework("pytorch")
    recorded = RecordedCall(
        entry=f"{name}.0.forward", site=given.site, args=given.args, outputs=framework.replay(given).values
    )
    verdict = CallChecker(framework=framework).check(recorded)
    path = write_reproducer(recorded, verdict, framework, tmp_path, command=COMMAND)
    assert "msprobe" not in path.read_text().split("import argparse")[1]
    assert run_here(path, monkeypatch) == 0
    first = recorded.outputs["0"]
    recorded.outputs["0"] = ReplayTensor(values=first.values * 1.01 + 1, dtype=first.dtype)
    assert run_here(write_reproducer(recorded, verdict, framework, tmp_path, command=COMMAND), monkeypatch) == 1


def test_a_hostile_dump_writes_no_code(tmp_path, monkeypatch):
    mark = tmp_path / "ran"
    evil = f'x\n"""\'); open({str(mark)!r}, "w") #'
    unit = record(tmp_path / "dump", call(lambda: functional.pad(torch.randn(3), (1, 1), mode="constant", value=2.0)))
    path = unit / "dump.json"
    content = json.loads(path.read_text())
    (entry,) = [name for name in content["data"] if name.startswith("Functional.pad")]
    content["data"][entry]["input_kwargs"][evil] = {"type": "str", "value": evil}
    path.write_text(json.dumps(content))
    calls = RecordedCalls(read_dump(unit), 1 << 20)
    framework = replaying_framework("pytorch")
    recorded = calls.read(entry)
    assert evil in recorded.kwargs
    verdict = CallChecker(framework=framework).check(recorded)
    with pytest.raises(ReplayError):
        write_reproducer(recorded, verdict, framework, tmp_path, command=COMMAND)
    del recorded.kwargs[evil]
    written = write_reproducer(recorded, verdict, framework, tmp_path, command=evil, place=evil)
    assert run_here(written, monkeypatch) == 0
    assert not mark.exists()
