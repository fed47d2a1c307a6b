"""Programs that are forked off a process see and do what those of a Python of their own do."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked_python import forked_python

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only on Linux")

SEEN = """
import atexit, os, sys
atexit.register(print, "at the end")
print(__name__, sys.argv, os.getcwd(), os.environ["GIVEN"], os.environ.get("LEFT"), sys.stdin.read(), sys.path[0])
print("apart", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("LEFT", "over")
        with forked_python(tmp_path_factory.mktemp("python"), ["json"]) as python:
            yield python


def run(python, *arguments, **options):
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("given", [["-c", SEEN], ["program.py"], ["-u", "program.py"], ["-m", "program"]])
def test_a_program_sees_what_it_is_given(python, tmp_path, given):
    (tmp_path / "program.py").write_text(SEEN)
    variables = {"PATH": os.environ["PATH"], "GIVEN": "given"}
    done, usual = (
        run(program, *given, "7", "b", cwd=tmp_path, input="said", env=variables)
        for program in (python, sys.executable)
    )
    assert done.returncode == usual.returncode == 7
    assert (done.stdout, done.stderr) == (usual.stdout, usual.stderr)
    assert done.stdout.endswith("at the end\n")


@pytest.mark.parametrize("code", ["1 / 0", "import sys; sys.exit('no')", "import os; os.kill(os.getpid(), 9)", "0"])
def test_a_program_ends_as_it_would(python, code):
    done, usual = (run(program, "-c", code) for program in (python, sys.executable))
    assert done.returncode == usual.returncode
    assert done.stderr.splitlines()[-1:] == usual.stderr.splitlines()[-1:]


def test_a_program_has_the_imports_and_starts_its_own_kind(python):
    code = "import subprocess, sys; print('json' in sys.modules); subprocess.run([sys.executable, *sys.argv[1:]])"
    done = run(python, "-c", code, "-c", "import sys; print('json' in sys.modules)")
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


def test_a_program_may_have_another_release(python, tmp_path):
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("")
    code = "import json; print(json.__file__)"
    done = run(python, "-c", code, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert Path(done.stdout.strip()).parent.parent == tmp_path


def test_a_program_is_killed_with_its_command(python):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, text=True) as command:
        number = int(command.stdout.readline())
        command.kill()
        assert command.stdout.read() == ""  # ends with the last process that has it
    while Path(f"/proc/{number}").exists():
        time.sleep(0.01)
