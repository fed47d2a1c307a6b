"""Calls are computed again on a device, which finds kernels that are wrong there. The device is simulated."""

import csv
import json
from functools import partial

import numpy as np
import pytest
import simulated_device
from device_programs import (
    Fault,
    check,
    command,
    devices,
    made_there,
    mixed,
    operators_of,
    record,
    replay,
    replay_beside_a_program,
    store,
    train_beside_host,
    train_checked,
)
from msprobe.pytorch._framework import PyTorchFramework

from msprobe_core import names
from msprobe_core.api_check.call_check import CallChecker
from msprobe_core.api_check.call_files import CallFiles
from msprobe_core.api_check.three_way import check_on
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.cli import main
from msprobe_core.errors import ConfigError, ReplayError
from msprobe_core.model import Argument, ReplayCall, ReplayTensor
from msprobe_core.plugin import DeviceReplayingFramework
from msprobe_core.store.reading import read_dump

pytestmark = pytest.mark.skipif(
    not simulated_device.has_python_devices(), reason="this PyTorch takes no device that is written in Python"
)

SOFTMAX = Fault("aten::_softmax", "scaled in bfloat16")
LINEAR = Fault("aten::addmm", "drops a row")


@pytest.fixture(scope="module")
def on_one():
    with simulated_device.device_process() as run:
        yield run


@pytest.fixture(scope="module")
def on_two():
    """Runs with two devices, whose functions get 2 as their last argument."""
    with simulated_device.device_process() as run:
        yield lambda function, *args: run(function, *args, 2)


@pytest.fixture(scope="module")
def dumps(on_one, tmp_path_factory):
    """Dumps by where they were recorded, and with which wrong kernels."""
    place = tmp_path_factory.mktemp("recorded")
    return {
        "host": on_one(record, place / "host", "cpu", "bfloat16"),
        "device": on_one(record, place / "device", "npu", "bfloat16"),
        "wrong device": on_one(record, place / "wrong", "npu", "bfloat16", [SOFTMAX, LINEAR]),
    }


def tensor(*shape, seed=0, dtype="float32", **rest):
    values = np.random.default_rng(seed).integers(-64, 64, shape) / 32
    return ReplayTensor(values=values.astype(np.float32), dtype=dtype, **rest)


def call(entry, *args, gradients=None, **kwargs):
    return ReplayCall(site=names.parse_entry(entry), args=list(args), kwargs=kwargs, gradients=gradients or {})


def softmax(dtype="float32"):
    return call("Functional.softmax.0.forward", tensor(4, 5, dtype=dtype), dim=Argument("int", -1))


CALLS = {
    "softmax": softmax("bfloat16"),
    "linear": call("Functional.linear.0.forward", tensor(4, 5), tensor(6, 5, seed=1), tensor(6, seed=2)),
    "gradients": call(
        "Functional.linear.0.backward",
        tensor(4, 5, takes_gradient=True), tensor(6, 5, seed=1, takes_gradient=True), gradients={"0": tensor(4, 6)},
    ),
    "device argument": call(
        "Torch.ones_like.0.forward", tensor(2, 3), device=Argument("torch.device", "cuda:3"), dtype=Argument(
            "torch.dtype", "torch.float16"),
    ),
    "in place": call("Tensor.add_.0.forward", tensor(3), tensor(3, seed=1)),
    "layer_norm": call(
        "Functional.layer_norm.0.forward", tensor(4, 8), [Argument("int", 8)], tensor(8, seed=1), tensor(8, seed=2)
    ),
}  # fmt: skip


class TestReplay:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", CALLS)
    def test_a_sound_device_returns_what_the_host_does(self, on_one, name):
        there, is_random = on_one(replay, CALLS[name], "npu")
        here, _ = on_one(replay, CALLS[name])
        assert {path: values.tolist() for path, values in there.items()} == {
            path: values.tolist() for path, values in here.items()
        }
        assert there
        assert not is_random

    def test_a_wrong_kernel_shows_on_its_device_only(self, on_two):
        fault = [Fault("aten::_softmax", "scaled", 1)]
        here, _ = on_two(replay, softmax(), None, fault)
        first, _ = on_two(replay, softmax(), "npu", fault)
        second, _ = on_two(replay, softmax(), "npu:1", fault)
        np.testing.assert_array_equal(first["0"], here["0"])
        np.testing.assert_allclose(second["0"], here["0"] * 1.02, rtol=1e-6)

    @pytest.mark.slow
    def test_the_program_keeps_its_random_numbers_and_its_autocast(self, on_one):
        kept = on_one(replay_beside_a_program, call("Functional.dropout.0.forward", tensor(4, 5)))
        assert kept == {"random": True, "host": True, "device": True, "autocast": True}

    @pytest.mark.parametrize("name", ["npu:2", "cuda", "tpu", "npu:x", "", "npu:0:1"])
    def test_a_missing_device_is_an_error_that_says_which_there_are(self, on_two, name):
        with pytest.raises(ConfigError, match=r"no such device on this machine; it sees cpu, npu:0, npu:1"):
            on_two(replay, softmax(), name, ())

    def test_a_failing_device_is_an_error_of_the_call(self, on_one):
        with pytest.raises(ReplayError, match=r"called again on npu:0 \(RuntimeError: EZ9999: Inner Error! the kernel"):
            on_one(replay, softmax(), "npu", [Fault("aten::_softmax", "fails")])

    def test_devices_are_listed(self, on_one, on_two):
        assert on_one(devices) == ["npu:0"]
        assert on_two(devices) == ["npu:0", "npu:1"]

    def test_the_host_is_no_further_device(self):
        framework = PyTorchFramework()
        assert isinstance(framework, DeviceReplayingFramework)
        here, named = framework.replay(softmax()).values["0"], framework.replay(softmax(), None, "cpu").values["0"]
        np.testing.assert_array_equal(here.values, named.values)


class TestSimulatedDevice:
    def test_operators_are_those_below_autograd(self, on_one):
        seen = on_one(operators_of, 4)
        assert seen == ["aten::copy_", "aten::mm", "aten::_softmax", "aten::sum", "aten::_local_scalar_dense"]

    def test_tensors_are_made_there_from_nothing(self, on_one):
        assert on_one(made_there) == [[1, 2], [0, 0], [0, 1], [3, 3], [0, 1], [1, 0]]

    def test_tensors_of_host_and_device_do_not_mix(self, on_one):
        assert "on the same device, but found cpu, npu:0" in on_one(mixed)


class TestThreeWay:
    def test_a_recording_on_the_device_has_the_calls_of_one_on_the_host(self, dumps):
        here, there = (set(read_dump(dumps[where]).frame["entry"]) for where in ("host", "device"))
        assert here == there

    @pytest.mark.parametrize("where", ["host", "device"])
    def test_a_sound_run_is_right_on_a_sound_device(self, on_one, dumps, where):
        found = on_one(check, dumps[where], ["npu"])
        assert len(found) > 20
        assert {verdict for verdict, _, _ in found.values()} <= {"right", "ill_conditioned"}
        assert {side for _, sides, _ in found.values() for side in sides} == {"recorded", "npu"}
        assert [codes for _, _, codes in found.values() if any("sides" in code for code in codes)] == []

    def test_under_autocast_the_device_computes_in_the_dtype_of_the_results(self, on_one, tmp_path):
        found = on_one(check, on_one(record, tmp_path, "cpu", "autocast"), ["npu"])
        linear = found["Functional.linear.0.forward"]
        assert linear[1] == {"recorded": "right", "npu": "right"}
        assert "confirm.replay.autocast" in linear[2]
        assert {verdict for verdict, _, _ in found.values()} <= {"right", "ill_conditioned"}
        found = on_one(check, on_one(record, tmp_path, "cpu", "autocast"), ["npu"], [LINEAR])
        assert found["Functional.linear.0.forward"][1] == {"recorded": "right", "npu": "wrong"}

    @pytest.mark.parametrize("where", ["host", "device"])
    def test_a_kernel_that_is_wrong_only_now_is_found_by_the_device(self, on_one, dumps, where):
        assert {verdict for verdict, _, _ in on_one(check, dumps[where]).values()} <= {"right", "ill_conditioned"}
        found = on_one(check, dumps[where], ["npu"], [SOFTMAX, LINEAR])
        verdict, sides, codes = found["Functional.softmax.0.forward"]
        assert (verdict, sides["recorded"], sides["npu"]) == ("wrong", "right", "wrong")
        assert "check.sides.only-fresh" in codes
        wrong = {entry for entry, (verdict, _, _) in found.items() if verdict == "wrong"}
        assert wrong == {
            "Functional.linear.0.forward", "Functional.linear.1.forward", "Functional.softmax.0.forward",
            "Functional.softmax.0.backward",
        }  # fmt: skip

    def test_a_kernel_that_was_wrong_and_is_so_again(self, on_one, dumps):
        found = on_one(check, dumps["wrong device"], ["npu"], [SOFTMAX, LINEAR])
        for entry in ("Functional.linear.0.forward", "Functional.softmax.0.forward"):
            verdict, sides, codes = found[entry]
            assert (verdict, sides) == ("wrong", {"recorded": "wrong", "npu": "wrong"})
            assert "check.sides.wrong-again" in codes

    def test_a_wrong_result_that_is_not_reproduced(self, on_one, dumps):
        found = on_one(check, dumps["wrong device"], ["npu"])
        verdict, sides, codes = found["Functional.linear.0.forward"]
        assert (verdict, sides) == ("wrong", {"recorded": "wrong", "npu": "right"})
        assert "check.sides.not-reproduced" in codes

    def test_a_kernel_that_is_wrong_in_another_way(self, on_one, dumps):
        found = on_one(check, dumps["wrong device"], ["npu"], [Fault("aten::_softmax", "scaled down")])
        assert "check.sides.wrong-otherwise" in found["Functional.softmax.0.forward"][2]

    def test_a_failing_kernel_leaves_the_verdict_on_the_recorded_result(self, on_one, dumps):
        found = on_one(check, dumps["host"], ["npu"], [Fault("aten::_softmax", "fails")])
        verdict, sides, codes = found["Functional.softmax.0.forward"]
        assert (verdict, sides) == ("right", {"recorded": "right"})
        assert "check.sides.not-computed" in codes

    def test_of_two_devices_one_is_wrong(self, on_two, tmp_path):
        dump = on_two(record, tmp_path, "npu", "bfloat16", ())
        found = on_two(check, dump, ["npu:0", "npu:1"], [Fault("aten::_softmax", "scaled", 1)])
        verdict, sides, codes = found["Functional.softmax.0.forward"]
        assert (verdict, sides) == ("wrong", {"recorded": "right", "npu:0": "right", "npu:1": "wrong"})
        assert "check.sides.devices-differ" in codes

    @pytest.mark.parametrize(
        ("named", "problem"),
        [(["cuda"], r"--device cuda: .* it sees npu:0, npu:1"), (["npu", "npu:0"], "the same device twice")],
    )
    def test_devices_are_checked_before_any_call(self, on_two, tmp_path, named, problem):
        with pytest.raises(ConfigError, match=problem):
            on_two(check, tmp_path, named, ())


class TestElsewhere:
    """Computed on a machine with the device, judged in this process, which does not have it."""

    def judged(self, directory):
        checker, files = CallChecker(framework=PyTorchFramework()), CallFiles(directory)
        assert files.header.framework == "pytorch"
        computed = {entry: files.read(entry) for entry in files.entries}
        return {entry: check_on(checker, each.call, stored=each.fresh) for entry, each in computed.items()}

    def test_a_wrong_kernel_is_found(self, on_one, dumps, tmp_path):
        there = on_one(check, dumps["device"], ["npu"], [SOFTMAX, LINEAR])
        number = on_one(store, dumps["device"], tmp_path / "calls", ["npu"], [SOFTMAX, LINEAR])
        assert PyTorchFramework().replay_devices() == []
        found = self.judged(tmp_path / "calls")
        assert len(found) == number
        here = {entry: verdict for entry, verdict in found.items() if verdict.outputs}
        assert {entry: verdict.verdict.value for entry, verdict in here.items()} == {
            entry: verdict for entry, (verdict, _, _) in there.items()
        }
        assert [note.code.value for note in here["Functional.softmax.0.forward"].notes] == ["check.sides.only-fresh"]

    def test_what_a_device_did_not_compute_is_said(self, on_one, dumps, tmp_path):
        on_one(store, dumps["host"], tmp_path / "calls", ["npu"], [Fault("aten::_softmax", "fails")])
        softmax = self.judged(tmp_path / "calls")["Functional.softmax.0.forward"]
        assert softmax.verdict is Verdict.RIGHT
        (note,) = softmax.notes
        assert note.text.startswith("not computed on npu: it cannot be called again on npu:0 (RuntimeError: EZ9999: ")

    def test_what_is_stored_is_not_computed_again(self, on_one, dumps, tmp_path):
        first = on_one(store, dumps["host"], tmp_path / "calls", ["npu"])
        assert first > 20
        assert on_one(store, dumps["host"], tmp_path / "calls", ["npu"], [LINEAR]) == 0
        assert {verdict.verdict for verdict in self.judged(tmp_path / "calls").values() if verdict.outputs} <= {
            Verdict.RIGHT, Verdict.ILL_CONDITIONED,
        }  # fmt: skip


def status_of(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


class TestCommand:
    def test_a_wrong_kernel_is_found_here(self, on_one, dumps, tmp_path):
        words = ["acc_check", "-api_info", str(dumps["device"]), "-n", "0"]
        assert on_one(command, [*words, "-o", str(tmp_path / "without")])[0] == 0
        words += ["--device", "npu"]
        assert on_one(command, [*words, "-o", str(tmp_path / "sound")])[0] == 0
        status, said = on_one(command, [*words, "-o", str(tmp_path / "wrong")], [SOFTMAX])
        assert status == 1
        assert "Functional.softmax.0.forward" in said
        assert "recorded right, and npu computes it wrong" in said

    def test_a_wrong_kernel_is_found_elsewhere(self, on_one, dumps, tmp_path, capsys):
        calls = str(tmp_path / "calls")
        words = ["acc_check", "-api_info", str(dumps["device"]), "--device", "npu", "--write_shards", calls]
        status, said = on_one(command, words, [SOFTMAX])
        assert (status, " 22 calls" in said) == (0, True)
        assert " 0 calls" in on_one(command, words, [SOFTMAX])[1]
        assert status_of("acc_check", "-api_info", calls, "-o", tmp_path / "out", "-n", "0") == 1
        assert "Functional.softmax.0" in capsys.readouterr().out

    def test_a_device_that_is_not_there_ends_it_at_once(self, dumps, tmp_path, capsys):
        words = ("acc_check", "-api_info", dumps["device"], "-o", tmp_path / "out", "--device", "npu")
        assert status_of(*words) == 2
        assert "--device npu: the framework sees no such device on this machine" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    def test_shards_are_of_a_device(self, dumps, tmp_path, capsys):
        words = ("acc_check", "-api_info", dumps["device"], "--write_shards", tmp_path / "calls")
        assert status_of(*words) == 2
        assert "give the device with -d" in capsys.readouterr().err


def test_calls_are_checked_while_they_are_trained(on_one, tmp_path):
    plain = on_one(train_beside_host, tmp_path / "plain", [LINEAR])
    assert on_one(train_checked, tmp_path / "checked", [LINEAR]) == plain
    files = sorted((tmp_path / "checked" / "run").glob("step*/*/acc_check.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    wrong = {(line["step"], line["call"]) for line in lines if line["verdict"] == "wrong"}
    assert {call for _, call in wrong} == {"Functional.linear.0.forward", "Functional.linear.1.forward"}
    assert {step for step, _ in wrong} == {0, 1}
    right = {line["call"].split(".")[1] for line in lines if line["verdict"] == "right"}
    assert {"gelu", "softmax", "matmul", "layer_norm"} <= right


# --- single calls on the device and on the host, in the training --------------------------------------------------


def rows_in(place):
    (directory,) = (place / "run").glob("msprobe_rank0_*")
    (file,) = directory.glob("compare_result_*.csv")
    with file.open() as opened:
        return directory, list(csv.DictReader(opened))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "all", "OFF"])
def test_calls_of_a_training_are_repeated_on_the_host(on_one, tmp_path, mode):
    plain = on_one(train_beside_host, tmp_path / "plain", [LINEAR])
    assert on_one(partial(train_beside_host, dump_mode=mode), tmp_path / "twin", [LINEAR]) == plain
    directory, rows = rows_in(tmp_path / "twin")
    results = {(row["api_name"].split(".")[1], row["result"]) for row in rows}
    assert ("linear", "fail") in results
    assert ("softmax", "pass") in results
    assert {row["step"] for row in rows} == {"0", "1"}
    saved = {path.name.split(".")[2] for path in directory.glob("*/*.npy")}
    assert {path.name for path in directory.iterdir() if path.is_dir()} == (set() if mode == "OFF" else {"cpu", "npu"})
    if mode == "auto":
        assert "linear" in saved
        assert "softmax" not in saved
    if mode == "all":
        assert {"linear", "softmax"} <= saved
    (lines,) = (tmp_path / "twin" / "run" / "step0").glob("*/free_benchmark.jsonl")
    verdicts = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {line["verdict"] for line in verdicts if ".linear." in line["call"]} == {"wrong"}
