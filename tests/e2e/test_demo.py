"""`msprobe demo` finds the fault that it plants, without a clone, and touches no foreign directory."""

import json
import os
import re
import stat
import subprocess
import sys

import pytest


def msprobe(*arguments, cwd, **environment):
    command = [sys.executable, "-m", "msprobe_core", *map(str, arguments)]
    plain = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.run(command, cwd=cwd, env=plain | environment, capture_output=True, text=True)


@pytest.fixture
def browser(tmp_path):
    """A browser that writes down which page it is to open."""
    program, opened = tmp_path / "browser", tmp_path / "opened"
    program.write_text(f"#!/bin/sh\necho $1 > {opened}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program, opened


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_the_planted_fault_is_located_and_its_page_opened(tmp_path, browser):
    program, opened = browser
    done = msprobe("demo", cwd=tmp_path, DISPLAY=":0", BROWSER=str(program))
    assert (done.returncode, done.stderr) == (0, "")
    located = json.loads((tmp_path / "msprobe_demo" / "result" / "locate.json").read_text())
    assert located["verdict"] == "fault"
    assert located["suspects"][0]["entry"] == "Functional.layer_norm.2.forward"
    golden, target = done.stdout.partition("Losses: golden ")[2].partition(".\n")[0].split(", target ")
    assert golden[:6] == target[:6]  # too close to be noticed
    page = tmp_path / "msprobe_demo" / "view.html"
    assert opened.read_text().strip() == page.as_uri()
    assert len(done.stdout.partition("FAULT")[0].split()) < 150
    made = [page.parent, *(path for path in page.parent.rglob("*") if "__pycache__" not in path.parts)]
    assert [path for path in made if path.stat().st_mode & 0o077] == []  # whatever the umask, for their owner only
    # Again, where an earlier demo was; without a display, and so without a browser.
    opened.unlink()
    again = msprobe("demo", cwd=tmp_path, BROWSER=str(browser[0]))
    # The page's size differs by some bytes, by the lengths of numbers and times in it.
    said = [re.sub(r"Page, [\d.]+ MB", "Page", each.stdout) for each in (again, done)]
    assert (again.returncode, said[0]) == (0, said[1])
    assert not opened.exists()


def test_a_directory_of_the_user_is_left_alone(tmp_path):
    (tmp_path / "mine" / "golden").mkdir(parents=True)
    (tmp_path / "mine" / "train.py").write_text("print(1)")
    done = msprobe("demo", "-o", "mine", "--no-browser", cwd=tmp_path)
    assert done.returncode == 2
    assert "mine is not empty, and is not of an earlier demo of pytorch; name another with -o" in done.stderr
    assert (tmp_path / "mine" / "golden").is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-plugin", "pytorch", "--no-plugin", "mindspore", "demo"], "no plugin of a framework is installed"),
        (["demo", "--framework", "jax"], "no plugin here has a demo of the framework 'jax'; known: "),
    ],
    ids=["no plugin", "unknown framework"],
)
def test_what_is_missing_is_said_in_one_sentence(tmp_path, arguments, said):
    done = msprobe(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_fails_is_named_with_what_it_said(tmp_path):
    (tmp_path / "torch.py").write_text("raise RuntimeError('the driver is too old')")
    done = msprobe("demo", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "failed with status 1 and said: RuntimeError: the driver is too old; run it yourself" in done.stderr
