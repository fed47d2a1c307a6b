"""The kernels for GPUs, compiled for one, and run by Triton's interpreter: right for every dtype and layout, and
trusted only once they have been.

Whether devices agree with the interpreter is shown by ``bench/device`` only, which is why a window is held against the
operators first.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

pytestmark = pytest.mark.slow

SUPPORT = Path(__file__).parent.parent / "support"


KERNELS = ("FusedMoments", "Wrong", "Refusing", "Losing", "Losing, floats only")


def drive(driver, kernels):
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, SUPPORT / driver, *kernels]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runs():
    """The windows that each kernel reduces, and the text it logs; all in one process, which imports Triton once."""
    found = drive("fused_driver.py", KERNELS)
    for run in found.values():
        for window in run["windows"]:
            window["stats"] = {
                name: [eval(text, {"nan": math.nan, "inf": math.inf}) for text in stats]
                for name, stats in window["stats"].items()
            }
    return {name: (run["windows"], run["said"]) for name, run in found.items()}


@pytest.fixture(scope="module")
def right(runs):
    return runs["FusedMoments"]


def same(stats, others):
    return all(
        (one is None and other is None)
        or (math.isnan(one) and math.isnan(other))
        or one == pytest.approx(other, rel=1e-9, abs=1e-12)
        for one, other in zip(stats, others, strict=True)
    )


def test_the_first_window_is_that_of_the_operators_and_the_next_agree(right):
    (first, second, third), said = right
    assert first["taken"] == 0
    assert second["taken"] == third["taken"] == 16 + 9  # four dtypes; others that are real and no integers
    for name, stats in first["stats"].items():
        assert same(second["stats"][name], stats), name
    assert said == ""


def test_equal_tensors_have_equal_statistics(right):
    (_, second, third), _ = right
    assert repr(second["stats"]) == repr(third["stats"])


def test_what_is_not_finite_is_counted(right):
    (_, second, _), _ = right
    assert second["stats"]["nan"][4:] == [1, 1]
    assert all(math.isnan(number) for number in second["stats"]["nan"][:4])
    assert second["stats"]["infinite"][:2] == [math.inf, -math.inf]
    assert second["stats"]["infinite"][3:] == [math.inf, 0, 2]
    assert second["stats"]["minus infinity"][:4] == [-math.inf, -math.inf, -math.inf, math.inf]


def test_a_kernel_that_is_wrong_here_is_never_recorded(runs, right):
    (first, second, third), said = runs["Wrong"]
    assert [window["taken"] for window in (first, second, third)] == [0, 0, 0]
    for window in (first, second, third):
        assert repr(window["stats"]) == repr(right[0][0]["stats"])
    assert said.count("the kernel is wrong on this device") == 1
    assert "torch.bfloat16" in said


def test_a_kernel_that_cannot_be_compiled_is_asked_once(runs, right):
    windows, said = runs["Refusing"]
    for window in windows:
        assert window["taken"] == 0
        assert repr(window["stats"]) == repr(right[0][0]["stats"])
    assert said.count("no such architecture") == 1


def test_a_device_that_fails_costs_the_window_and_no_more(runs, right):
    (first, second, third), said = runs["Losing"]
    assert repr(first["stats"]) == repr(third["stats"]) == repr(right[0][0]["stats"])
    assert second["stats"]["torch.float32 100"] == [None] * 6
    assert second["stats"]["integers"] == first["stats"]["integers"]
    assert said.count("device lost") == 1


def test_a_device_that_fails_when_nothing_else_waits_costs_no_more_either(runs, right):
    (first, second, third), said = runs["Losing, floats only"]
    assert second["stats"]["torch.float32 100"] == [None] * 6
    assert repr(first["stats"]) == repr(third["stats"])
    assert said.count("device lost") == 1


def test_hashes_of_the_kernel_are_those_of_the_host():
    (first, second, third, said), (*wrong, complaint), (*refused, refusal) = drive(
        "fused_hash_driver.py", ("right", "wrong", "refusing")
    ).values()
    assert all(window["same"] for window in (first, second, third, *wrong, *refused))
    num_tensors = first["launches"]
    assert num_tensors > 30
    assert [window["compared"] for window in (first, second, third)] == [num_tensors, 0, 0]
    assert second["launches"] == third["launches"] == num_tensors
    assert said == ""
    # Elements of 2 bytes, which were hashed wrongly, are left to the operators; those of other widths are not.
    assert [window["compared"] for window in wrong] == [num_tensors, 0, 0]
    assert 20 < wrong[1]["launches"] < num_tensors
    assert "tensors of 2 bytes for an element are hashed by several operators: the kernel is wrong" in complaint
    assert [window["launches"] for window in refused] == [1, 0, 0]
    assert refusal.count("no such architecture") == 1


def test_compilers_take_the_kernels_which_the_interpreter_does_not_show(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-W", "ignore", SUPPORT / "fused_compiler.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 3 * (4 + 4)
