"""What ``msprobe estimate`` says of programs that cannot be measured, and that it ends what it has started."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from estimates import command, estimate_here, numbers, write

FUNCTIONS = """
import torch
from torch import nn

torch.set_num_threads(1)

def forgetful():
    torch.ones(2)

def restless():
    return nn.Linear(2, 2)

def wrong():
    raise ValueError("my fault")
"""

FULL = """
import resource
import torch
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger()
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for _ in range(9):
    debugger.start()
    for _ in range(20):
        torch.ones(2) + 1
    debugger.stop()
    debugger.step()
"""


@pytest.mark.slow
def test_what_cannot_be_written_is_not_measured(place, capfd):
    done = estimate_here(capfd, "--levels", "L1", "--modes", "statistics", write("full.py", FULL))
    assert done.returncode == 2
    assert "recording ends at step 0" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("msprobe: error: L1 statistics: recording ended by itself")
    assert numbers()["bare"]["time_s"] > 0
    assert numbers()["cases"][0]["factor"] is None
    assert re.search(r"^L1 +statistics +failed", done.stdout, re.MULTILINE)


BARE = "from msprobe_core import PrecisionDebugger\ndebugger = PrecisionDebugger()\n"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import sys\nprint(1)\nraise ValueError('my fault')", r"ValueError: my fault\n.*failed with exit status 1"),
        ("import os\nos.kill(os.getpid(), 11)", r"without recording: train\.py failed with signal SIGSEGV"),
        ("print('trained')", r"train\.py ended without a PrecisionDebugger; add start\(\)"),
        (BARE, r"never called step\(\) of its PrecisionDebugger"),
        (
            BARE + "debugger.framework_name = 'x'\ndebugger.step()",
            r"'x' is not available.*\n.*failed with exit status 1",
        ),
        (
            BARE.replace("PrecisionDebugger()", "PrecisionDebugger('none.json')"),
            r"none\.json: cannot be read.*\n.*failed with exit status 1",
        ),
        ("from msprobe.pytorch import PrecisionDebugger as P\nP().step()", r"ended after 1 step; 1 to warm up and at"),
        ("from msprobe.pytorch import PrecisionDebugger as P\nd = P()\nwhile 1:\n d.step()", r"recorded nothing"),
    ],
    ids=["error", "signal", "no debugger", "no step", "no framework", "no config", "one step", "nothing"],
)
def test_scripts_that_cannot_be_measured(place, capfd, script, expected):
    done = estimate_here(capfd, "--levels", "L1", "--modes", "statistics", write("train.py", script))
    assert done.returncode == 2
    assert re.search(expected, done.stderr)
    assert len([line for line in done.stderr.splitlines() if line.startswith("msprobe: error: ")]) == 1
    assert ("L1" in done.stdout) == ("recorded nothing" in expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gone.py"], r"gone\.py: is no file"),
        (["gone:steps"], r"there is no module 'gone' here"),
        (["json.gone:steps"], r"there is no module 'json\.gone' here"),
        (["json:gone"], r"the module 'json' has no 'gone'"),
        (["json:__name__"], r"is str, not a function"),
        (["--levels", "L0", "functions:forgetful"], r"gave no model, and this level records modules"),
        (["--levels", "L0", "functions:restless"], r"gave another model than before"),
        (["functions:wrong", "--levels", "L0"], r"a function takes no arguments; options come before functions"),
        (["--levels", "L0,L5", "x.py"], r"the level 'L5' cannot be measured; allowed: L0, L1, mix"),
        (["--modes", "mean", "x.py"], r"the mode .mean. cannot be measured; allowed: fp8, hash, md5, sketch, stat"),
        (["--levels", ",", "x.py"], r"give at least one name"),
        (["--steps", "0", "x.py"], r"--steps"),
        (["--json", "gone/x.json", "x.py"], r"there is no directory .*gone"),
        (["--scratch", "gone", "functions.py"], r"gone: no directory can be made there"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_calls_that_are_wrong(place, capfd, arguments, expected):
    write("functions.py", FUNCTIONS)
    done = estimate_here(capfd, "--modes", "statistics", *arguments)
    assert done.returncode == 2
    assert re.search(expected, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_error_of_a_function_is_shown_without_ours(place, capfd):
    write("functions.py", FUNCTIONS)
    done = estimate_here(capfd, "functions:wrong")
    assert done.returncode == 2
    traceback = r"Traceback .*\n  File \".*functions\.py\", line \d+, in wrong\n(    .*\n)+ValueError: my fault\n"
    assert re.search(traceback + "msprobe: error: without recording: functions:wrong failed with exit", done.stderr)


STUCK = """
import subprocess, sys, time
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open("pids.part", "w") as file:
    import os
    file.write(f"{os.getpid()} {sleeper.pid}")
os.rename("pids.part", "pids")
print("waiting for the others", file=sys.stderr)
time.sleep(600)
"""


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_all_have_ended():
    processes = Path("pids").read_text().split()
    assert len(processes) == 2
    assert not [process for process in processes if is_running(process)]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="descendants are found in /proc")
def test_a_program_that_is_stuck_is_ended_with_its_children(place, capfd):
    done = estimate_here(capfd, "--timeout", "5", write("stuck.py", STUCK))
    assert done.returncode == 2
    assert "waiting for the others\nmsprobe: error: without recording: stuck.py was ended after 5 s" in done.stderr
    assert_all_have_ended()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="descendants are found in /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_who_gives_up_leaves_nothing(place, number, status):
    running = subprocess.Popen(command(write("stuck.py", STUCK)), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not Path("pids").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    [dumps] = (place / "scratch").iterdir()
    assert dumps.stat().st_mode & 0o077 == 0
    running.send_signal(number)
    _, err = running.communicate(timeout=300)
    assert running.returncode == status
    assert "Traceback" not in err
    assert_all_have_ended()
