"""`msprobe doctor`: each thing that hinders is named with its reason and its remedy, and decides the exit status."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from broken_plugins import NAME, implementation, plugged

import msprobe_core
from msprobe_core.doctor import examine, machine
from msprobe_core.doctor.installation import of_installation
from msprobe_core.plugins import registry
from msprobe_core.protocols.checkups import Checkup, Health

REPOSITORY = Path(msprobe_core.__file__).parents[1]
PATHS = [REPOSITORY, *sorted((REPOSITORY / "plugins").glob("*"))]
WITHOUT_PLUGINS = ["--no-plugin", "pytorch", "--no-plugin", "mindspore", "--no-plugin", "verl"]


def doctor(place, *arguments, first=(), plugins=(), **environment):
    """Run the command in a process of its own, with directories before all others on its import path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*first, *PATHS)))} | environment
    command = [sys.executable, "-c", "from msprobe_core.cli import main; main()", *plugins, "doctor", *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)


def conditions(done):
    return {each["code"]: each for each in json.loads(done.stdout)["conditions"]}


def installed(site, name, version):
    (site / f"{name}-{version}.dist-info").mkdir(parents=True)
    (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_every_code_is_on_the_page_and_no_other():
    globs = ("msprobe_core/doctor/*.py", "plugins/*/msprobe/*/_checkup.py")
    text = "".join(path.read_text() for each in globs for path in REPOSITORY.glob(each))
    codes = set(re.findall(r'(?:code=|_space\(.*, |FAILED = )"([a-z-]+\.[a-z-]+)"', text))
    assert len(codes) > 20
    for page in ("docs/first_minute.md", "docs/zh/first_minute.md"):
        listed = set(re.findall(r"^\| `([a-z-]+\.[a-z-]+)`", (REPOSITORY / page).read_text(), re.MULTILINE))
        assert listed == codes


def test_what_hides_us_is_an_error_and_old_releases_are_warned_of(tmp_path):
    site = tmp_path / "site"
    installed(site, "mindstudio_probe", "26.2.0")
    installed(site, "msprobe_core", "0.0.9")
    shared = doctor(tmp_path, "--json", first=[site], plugins=WITHOUT_PLUGINS)
    found = conditions(shared)
    assert (shared.returncode, shared.stderr) == (1, "")
    assert found["namespace.shared"]["health"] == found["core.twice"]["health"] == "warning"
    assert "0.0.9" in found["core.twice"]["state"]
    assert found["plugin.disabled"]["health"] == "warning"

    (site / "msprobe").mkdir()
    (site / "msprobe" / "__init__.py").write_text("raise SystemExit('it was run')")
    hidden = doctor(tmp_path, first=[site])
    assert hidden.returncode == 1
    assert f"the package msprobe is another one: {site / 'msprobe'}  [namespace.hidden]" in hidden.stdout
    assert "it was run" not in hidden.stdout + hidden.stderr
    assert re.search(r"\d+ things hinder$", hidden.stdout)


def test_a_directory_that_cannot_be_written_and_threads_beyond_the_processors_are_told(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OMP_NUM_THREADS", "99999")
    found = {each.code: each for each in machine.of_machine(tmp_path / "file" / "run")}
    assert (found["machine.dump-path"].health, found["machine.threads"].health) == (Health.ERROR, Health.WARNING)
    assert "99999" in found["machine.threads"].state
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = {each.code: each for each in machine.of_machine(tmp_path / "new" / "run")}
    assert (found["machine.dump-path"].health, found["machine.threads"].health) == (Health.OK, Health.OK)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize(("name", "reason"), [("n" * 300, "too long"), ("a\0b", "null")])
def test_a_name_that_no_directory_can_have_is_told(tmp_path, name, reason):
    found = {each.code: each for each in machine.of_machine(tmp_path / name)}
    assert found["machine.dump-path"].health is Health.ERROR
    assert reason in found["machine.dump-path"].state
    assert "machine.threads" in found


def test_a_local_package_of_our_name_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "msprobe.py").touch()
    (local,) = [each for each in of_installation(registry()) if each.code == "namespace.local"]
    assert str(tmp_path / "msprobe.py") in local.state
    monkeypatch.chdir(REPOSITORY)
    assert [each for each in of_installation(registry()) if each.code == "namespace.local"] == []


@pytest.mark.parametrize("way", ["raises", "wrong type", "returns None", "exits", "no conditions"])
def test_a_checkup_that_fails_leaves_the_others(tmp_path, way):
    strange = Checkup(NAME, lambda: ["fine"])
    offers = (lambda: [strange]) if way == "no conditions" else implementation("checkups", "examine", way)
    with plugged("checkups", offers):
        sections = {each.name: each.conditions for each in examine(tmp_path)}
    (failed,) = sections[NAME]
    assert (failed.code, failed.health) == ("checkup.failed", Health.ERROR)
    every = [condition for each in sections.values() for condition in each]
    assert len(every) > 8
    assert [each for each in every if each.health is not Health.OK and not each.why] == []
    assert [each for each in every if each.health in (Health.WARNING, Health.ERROR) and not each.advice] == []


def test_a_wrong_configuration_is_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text('{"levell": "L1"}')
    done = doctor(tmp_path, "-c", "config.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'level'" in done.stderr
