"""Checks of every call of a dump: wrong kernels are found without a second run, and healthy calls are right."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from cyclic_garbage import left_by
from wrong_kernels import FAULTS, call, kernel, record, train

from msprobe_core.api_check.check_codes import CheckCode
from msprobe_core.api_check.dump_check import CheckOptions, DumpCheck, check_dump
from msprobe_core.api_check.random_codes import RandomCode
from msprobe_core.api_check.verdict import Mutant, Verdict
from msprobe_core.cli import main
from msprobe_core.model import ReplayCall, ReplayTensor
from msprobe_core.replay.replay_codes import ReplayCode

DTYPES = (torch.float32, torch.bfloat16)


def verdicts(dump, **options):
    return {found.entry: found for found in check_dump(dump, CheckOptions(**options), workers=0)}


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def healthy(request, tmp_path_factory):
    return record(tmp_path_factory.mktemp("healthy") / "dump", train(request.param))


def test_healthy_calls_are_right_and_the_check_has_power(healthy):
    found = verdicts(healthy)
    assert len(found) > 20
    assert {each.verdict for each in found.values()} == {Verdict.RIGHT}, found
    linear = found["Functional.linear.0.forward"].outputs[0]
    assert {Mutant.ZEROS, Mutant.SCALED, Mutant.HALF_PRECISION} <= set(linear.applied)
    assert linear.accepted == ()


@pytest.mark.parametrize("is_one", [False, True], ids=["two tensors", "one tensor"])
def test_arguments_with_equal_values_may_be_one_tensor_or_two(is_one, tmp_path):
    def step(debugger):
        first = torch.ones(3, requires_grad=True)
        second = first if is_one else torch.ones(3, requires_grad=True)
        with debugger.start():
            torch.add(first, second).sum().backward()

    found = verdicts(record(tmp_path / "dump", step, level="L1"))
    assert found["Torch.add.0.backward"].verdict is Verdict.RIGHT


def test_no_tensor_waits_for_the_garbage_collector(healthy):
    """Trainings switch it off, and a large call would need several times the memory."""
    left = left_by(lambda: verdicts(healthy))
    assert [each for each in left if isinstance(each, ReplayCall | ReplayTensor | torch.Tensor)] == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_wrong_kernel_is_the_only_wrong_call(fault, dtype, tmp_path):
    if (fault, dtype) == ("cast", torch.bfloat16):
        pytest.skip("a cast to bfloat16 changes nothing there")
    plant, entry = FAULTS[fault]
    with plant():
        dump = record(tmp_path / "dump", train(dtype))
    found = verdicts(dump)
    wrong = [name for name, each in found.items() if each.verdict is Verdict.WRONG]
    assert entry in wrong
    # All calls of the kernel are wrong, with their gradients, and no others.
    assert {re.sub(r"\.\d+\.(for|back)ward", "", name) for name in wrong} == {re.sub(r"\.\d+\.\w+", "", entry)}
    worst = found[entry].worst
    assert worst.times > 1
    assert worst.error > max(worst.rounding, worst.condition)


def with_other(dump, tensor, change):
    """Replace a recorded tensor, as if a kernel had computed another one."""
    path = dump / "dump_tensor_data" / f"{tensor}.pt"
    torch.save(change(torch.load(path)), path)
    return dump


def test_elements_whose_disturbed_inputs_leave_the_domain_are_judged(tmp_path):
    """A negative number to the power of 2 + u is NaN."""
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    dump = record(tmp_path / "dump", call(torch.pow, x, torch.tensor(2.0)), level="L1")
    assert verdicts(dump)["Torch.pow.0.forward"].verdict is Verdict.RIGHT
    with_other(dump, "Torch.pow.0.forward.output.0", lambda value: torch.where(x < 0, value * 1.001, value))
    assert verdicts(dump)["Torch.pow.0.forward"].verdict is Verdict.WRONG


def test_a_function_that_refuses_disturbed_inputs_is_given_others(tmp_path):
    """Labels and probabilities above 1 are refused."""
    torch.manual_seed(0)
    given, labels = torch.rand(64), (torch.rand(64) > 0.5).float()
    given[0] = labels[0] = 1.0

    def step(debugger):
        with debugger.start():
            torch.nn.functional.binary_cross_entropy(given.requires_grad_(), labels).backward()

    name = "Functional.binary_cross_entropy.0"
    dump = record(tmp_path / "dump", step, level="L1")
    found = verdicts(dump)
    assert [found[f"{name}.{phase}"].verdict for phase in ("forward", "backward")] == [Verdict.RIGHT, Verdict.RIGHT]
    with_other(dump, f"{name}.forward.output.0", lambda value: value * 1.001)
    assert verdicts(dump)[f"{name}.forward"].verdict is Verdict.WRONG


def test_the_gradient_of_a_frequent_token_is_a_long_sum_of_equal_terms(tmp_path):
    """As of padding, in a mean over the sentence."""
    torch.manual_seed(0)
    weight = torch.randn(100, 8, requires_grad=True)
    tokens = torch.randint(1, 100, (8, 2048))
    tokens[:, 100:] = 0

    def step(debugger):
        with debugger.start():
            torch.nn.functional.embedding(tokens, weight).mean(1).exp().sum().backward()

    dump = record(tmp_path / "dump", step, level="L1")
    entry = "Functional.embedding.0.backward"
    assert verdicts(dump)[entry].verdict is Verdict.RIGHT

    def scaled(value):
        value[1:] *= 1.01
        return value

    with_other(dump, f"{entry}.output.1", scaled)
    assert verdicts(dump)[entry].verdict is Verdict.WRONG


def gelu_of_a_wrong_narrow_kernel(x, *, approximate="none"):
    wide = x.double()
    right = wide * (1 + torch.erf(wide / 2**0.5)) / 2
    return (right if x.dtype is torch.float64 else right * 1.2).to(x.dtype)


@pytest.mark.slow
def test_a_kernel_that_is_wrong_here_too_is_wrong(tmp_path):
    """As where the check runs in the training's own process: the replay in the call's own precision is as wrong."""
    with kernel("gelu", gelu_of_a_wrong_narrow_kernel):
        for dtype in DTYPES:
            found = verdicts(record(tmp_path / str(dtype), train(dtype)))["Functional.gelu.0.forward"]
            assert found.verdict is Verdict.WRONG
            assert found.notes[0].code is CheckCode.HOST_IS_OFF_TOO


def test_what_autocast_computes_is_judged_in_its_precision(tmp_path):
    """A half-precision kernel explains its rounding inside of the call, and not two percent."""

    @call
    def run():
        torch.manual_seed(0)
        x, weight = (torch.randn(24, 24, requires_grad=True) for _ in range(2))
        with torch.autocast("cpu", torch.bfloat16):
            torch.nn.functional.linear(x, weight).pow(2).sum().backward()

    dump = record(tmp_path / "dump", run, level="L1")
    own = [entry for entry in verdicts(dump) if entry.startswith("Functional.linear.0")]
    assert own == ["Functional.linear.0.forward", "Functional.linear.0.backward"]
    for entry in own:
        assert verdicts(dump)[entry].verdict is Verdict.RIGHT
        assert verdicts(dump)[entry].outputs[0].own_error > 1e-3  # it was replayed in bfloat16
        (path, *_) = (dump / "dump_tensor_data").glob(f"{entry}.output.0*")
        torch.save(torch.load(path) * 1.02, path)
        assert verdicts(dump)[entry].verdict is Verdict.WRONG


def test_cancellation_is_ill_conditioned_and_not_wrong(tmp_path):
    """The sum of differences of nearly equal numbers: float32 leaves few right digits."""
    torch.manual_seed(0)
    x = torch.rand(4096) + 1
    total = x.double().sum()

    # The first term cancels the sum of the others up to the last digits of float32.
    terms = torch.cat([-total.float().reshape(1), x])
    dump = record(tmp_path / "dump", call(torch.sum, terms), level="L1")
    found = verdicts(dump)["Torch.sum.0.forward"]
    assert found.verdict in (Verdict.ILL_CONDITIONED, Verdict.RIGHT)
    assert found.worst.amplification > 1e3


def test_singular_vectors_of_another_sign_are_not_wrong(tmp_path):
    torch.manual_seed(0)
    dump = record(tmp_path / "dump", call(torch.linalg.svd, torch.randn(5, 5)), level="L1")
    entry = "Torch.linalg_svd.0.forward"
    assert verdicts(dump)[entry].verdict in (Verdict.RIGHT, Verdict.CANNOT_TELL)
    for number in (0, 2):
        file = next(dump.glob(f"dump_tensor_data/Torch.linalg_svd.0.forward.output.0.{number}.*"))
        torch.save(-torch.load(file), file)
    found = verdicts(dump)[entry]
    assert (found.verdict, found.reason.code) == (Verdict.CANNOT_TELL, CheckCode.NOT_UNIQUE)


def test_what_is_not_checked_has_a_reason(tmp_path):
    ones = torch.ones(8)

    def run(debugger):
        with debugger.start():
            torch.randn(4)
            torch.randperm(4)
            torch.nn.functional.dropout(ones, 0.5)

    found = verdicts(record(tmp_path / "dump", run, level="L1"))
    reasons = {name: each.reason for name, each in found.items()}
    assert {each.verdict for each in found.values()} == {Verdict.CANNOT_TELL}
    assert reasons["Torch.randperm.0.forward"].text.endswith("it draws random numbers")
    assert reasons["Torch.randn.0.forward"].code is RandomCode.SHORT
    assert reasons["Functional.dropout.0.forward"].code is RandomCode.SHORT


def test_which_calls_are_checked(healthy):
    def chosen(**options):
        return DumpCheck.of(healthy, CheckOptions(**options)).entries

    assert set(chosen(white_list=["linear"])) == {entry for entry in chosen() if "linear" in entry}
    assert not [entry for entry in chosen(black_list=["linear"]) if "linear" in entry]
    assert chosen(white_list=["linear"], black_list=["linear"]) == []


def test_equal_calls_are_checked_once(tmp_path):
    def run(debugger):
        with debugger.start():
            for size in (3, 3, 4):
                torch.add(torch.ones(size), 1)
            torch.add(torch.ones(3), 2)

    dump = record(tmp_path / "dump", run, level="L1")
    found = DumpCheck.of(dump, CheckOptions(once_per_kind=True, white_list=["Torch.add"])).entries
    assert found == ["Torch.add.0.forward", "Torch.add.2.forward", "Torch.add.3.forward"]


def sorted_from_behind(x, *, stable, dim=-1, descending=False):
    """Sort a vector as a device may: equal elements in the order that the host does not take."""
    assert (stable, x.ndim, descending) == (False, 1, False)
    places = x.numel() - 1 - np.argsort(x.numpy()[::-1], kind="stable")
    return torch.from_numpy(x.numpy()[places]), torch.from_numpy(places)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
def test_equal_elements_are_sorted_in_any_order(tmp_path, dtype):
    experts = torch.tensor([3, 1, 3, 0, 1, 1, 2, 3]).to(dtype)

    def run(debugger):
        with debugger.start():
            torch.sort(experts)

    with kernel("sort.stable", sorted_from_behind):
        dump = record(tmp_path / "dump", run, level="L1")
    (found,) = verdicts(dump, white_list=("Torch.sort",)).values()
    assert found.verdict is Verdict.RIGHT
    assert ReplayCode.OUTPUT_EQUAL_ELEMENTS in {each.reason.code for each in found.outputs}


def test_a_dump_in_the_place_of_another_one_is_read_anew(tmp_path):
    for dtype in DTYPES:
        shutil.rmtree(tmp_path / "dump", ignore_errors=True)
        dump = record(tmp_path / "dump", train(dtype))
        assert {each.verdict for each in verdicts(dump).values()} == {Verdict.RIGHT}


# --- the command ------------------------------------------------------------------------------------------------


def status(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["acc_check", *map(str, arguments)])
    return ended.value.code


def checked(dump, out, *options):
    return status("-api_info", dump / "dump.json", "-o", out, "-n", "0", *options)


def test_exit_status(healthy, tmp_path):
    assert checked(healthy, tmp_path / "healthy") == 0
    plant, _ = FAULTS["bias"]
    with plant():
        dump = record(tmp_path / "dump", train(torch.float32))
    assert checked(dump, tmp_path / "faulty") == 1


def test_error_data_of_a_wrong_call_that_draws_numbers_are_what_there_is(tmp_path):
    dump = record(tmp_path / "dump", call(torch.nn.functional.dropout, torch.randn(256, 64), 0.1), level="L1")
    with_other(dump, "Functional.dropout.0.forward.output.0", lambda value: value * 0.9)
    assert checked(dump, tmp_path / "out", "-save_error_data") == 1
    (data,) = (tmp_path / "out").glob("ut_error_data*")
    assert sorted(path.name for path in data.iterdir()) == [
        "Functional.dropout.0.forward.input.0.npy",
        "Functional.dropout.0.forward.output.device.0.npy",
    ]


def test_a_damaged_result_is_replaced_only_if_asked(healthy, tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text('{"white_list": ["gelu"]}')
    (tmp_path / "acc_check.json").write_text('{"version": 1')
    command = ("-api_info", healthy, "-o", tmp_path, "-config", config, "-n", 0)
    assert status(*command) == 2
    assert "or give --overwrite" in capsys.readouterr().err
    assert status(*command, "--overwrite") == 0
    assert json.loads((tmp_path / "acc_check.json").read_text())["verdict"] == "right"


def test_lists_that_leave_nothing_are_named(healthy, tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text('{"white_list": ["soft_max"]}')
    assert status("-api_info", healthy, "-o", tmp_path / "out", "-config", config) == 2
    assert f"{config}: white_list and black_list leave no call of" in capsys.readouterr().err


def test_no_dump(tmp_path, capsys):
    assert status("-api_info", tmp_path / "dump.json") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_nothing_to_check(tmp_path):
    dump = record(tmp_path / "dump", call(torch.randn, 4), level="L1")
    assert checked(dump, tmp_path / "out") == 2


def test_a_damaged_tensor_costs_its_call(tmp_path):
    dump = record(tmp_path / "dump", train(torch.float32))
    found = verdicts(dump)
    tensors = dump / "dump_tensor_data"
    file = next(path for path in sorted(tensors.iterdir()) if "linear.0.forward.input" in path.name)
    file.write_bytes(file.read_bytes()[:-7])
    again = verdicts(dump)
    lost = {name for name, each in again.items() if each.verdict is Verdict.CANNOT_TELL}
    assert lost == {"Functional.linear.0.forward", "Functional.linear.0.backward"}
    assert file.name in again["Functional.linear.0.forward"].reason.text
    assert {name: each.verdict for name, each in again.items() if name not in lost} == {
        name: each.verdict for name, each in found.items() if name not in lost
    }


@pytest.mark.slow
def test_several_processes_give_the_same(healthy):
    one = verdicts(healthy)
    two = {found.entry: found for found in check_dump(healthy, workers=2)}
    assert {name: (each.verdict, each.outputs) for name, each in two.items()} == {
        name: (each.verdict, each.outputs) for name, each in one.items()
    }


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_a_check_that_was_killed_goes_on(tmp_path):
    dump = record(tmp_path / "dump", train(torch.float32))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "msprobe_core", "acc_check", "-api_info", str(dump), "-o", str(out), "-n", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while not (files := list(out.glob(".acc_check_*"))) or files[0].stat().st_size < 4000:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    (journal,) = files
    assert len(list(out.glob("accuracy_checking_*.csv"))) == 2
    stamp = journal.name.removeprefix(".acc_check_").removesuffix(".journal")
    assert checked(dump, out, "-csv_path", str(out / f"accuracy_checking_result_{stamp}.csv")) == 0
    content = json.loads((out / "acc_check.json").read_text())
    assert len(content["calls"]) == len(verdicts(dump))
    results = (out / f"accuracy_checking_result_{stamp}.csv").read_text(encoding="utf-8-sig").splitlines()
    assert len(set(results)) == len(results)  # no call twice
    assert not journal.exists()
    # And once more there is nothing left.
    assert checked(dump, out, "-csv_path", str(out / f"accuracy_checking_result_{stamp}.csv")) == 2
