"""Directories of killed processes are removed by the next one, and those of running ones are not."""

import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from msprobe_core.store import held_directory
from msprobe_core.store.convert import replaced_directory
from msprobe_core.store.held_directory import temporary_directory

HOLD = """
import sys, time
from pathlib import Path
from msprobe_core.store.held_directory import temporary_directory
held = temporary_directory("msprobe-rows-")
(held.path / "x").write_text("x")
print(held.path, flush=True)
time.sleep(60)
"""

REPLACE = """
import os, signal, sys
from pathlib import Path
from msprobe_core.store.convert import replaced_directory
when = sys.argv[2]
rename = Path.rename
def stop(self, target):
    made = rename(self, target)
    if when == "between" and str(target).endswith(".old") or when == "after" and not str(target).endswith(".old"):
        os.kill(os.getpid(), signal.SIGKILL)
    return made
Path.rename = stop
with replaced_directory(Path(sys.argv[1])) as scratch:
    (scratch / "new").write_text("new")
    if when == "while":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(held_directory, "_SETTLED_S", -1.0)
    held_directory._swept.clear()


def started(program, *arguments):
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_a_directory_is_removed_once_its_process_was_killed(tmp_path, monkeypatch):
    process = started(HOLD)
    path = Path(process.stdout.readline().strip())
    own = temporary_directory("msprobe-rows-")
    assert (path / "x").exists()  # its process runs
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    held_directory._swept.clear()
    stranger = tmp_path / "msprobe-rows-by-hand"
    stranger.mkdir()
    link = tmp_path / f"msprobe-rows-link{held_directory.SUFFIX}"
    link.symlink_to(stranger)
    with monkeypatch.context() as young:
        young.setattr(held_directory, "_SETTLED_S", 60.0)
        temporary_directory("msprobe-rows-").remove()
    assert path.exists()  # it may be one that another process has not held yet
    held_directory._swept.clear()
    temporary_directory("msprobe-rows-").remove()
    assert not path.exists()
    assert own.path.exists()
    assert stranger.exists()
    assert link.is_symlink()
    own.remove()
    assert not own.path.exists()


@pytest.mark.parametrize(("when", "kept"), [("while", "old"), ("between", "old"), ("after", "new")])
def test_a_directory_that_was_being_replaced_is_whole_again(tmp_path, when, kept):
    run = tmp_path / "run"
    run.mkdir()
    (run / "old").write_text("old")
    process = started(REPLACE, run, when)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert [path.name for path in tmp_path.iterdir()] != ["run"]
    with suppress(RuntimeError), replaced_directory(run):
        assert [path.name for path in run.iterdir()] == [kept]
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
