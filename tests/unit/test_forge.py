"""Files for a public forge: they are valid, and what they run is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
TARGETS = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def read(path):
    return yaml.load(path.read_text(), yaml.BaseLoader)


def commands(job):
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_is_there_with_few_rights(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert {"runs-on", "steps"} <= job.keys()
        for command in commands(job):
            if command.startswith("make "):
                assert command.split()[1] in TARGETS
            if command.startswith(".ci/"):
                assert (REPOSITORY / command).is_file()
            assert "${{ github.event" not in command  # text of strangers is not run
        assert all("@" in step["uses"] for step in job["steps"] if "uses" in step)


def test_everything_that_the_project_has_is_run_somewhere():
    run = "\n".join(command for path in WORKFLOWS for job in read(path)["jobs"].values() for command in commands(job))
    for command in ("make test", "make test-slow", "make site", ".ci/nightly", "make release"):
        assert command in run


@pytest.mark.slow
def test_shares_of_the_slow_tests_together_are_all():
    (job,) = (job for job in read(REPOSITORY / ".github/workflows/ci.yml")["jobs"].values() if "strategy" in job and
              "share" in job["strategy"]["matrix"])  # fmt: skip
    shares = job["strategy"]["matrix"]["share"]
    assert f"% {len(shares)} + 1" in (REPOSITORY / ".ci/run").read_text()

    def collected(*options):
        command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", __file__, *options]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return [line for line in done.stdout.splitlines() if "::" in line]

    found = [collected(f"--share={share}") for share in shares]
    assert sorted(test for tests in found for test in tests) == sorted(collected())
    assert all(found)
    assert collected("--share=5/4") == []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_ask_for_what_is_needed(path):
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    assert all({"type", "id", "attributes"} <= field.keys() for field in form["body"])
    asked = " ".join(field["attributes"]["label"] for field in form["body"])
    assert "msprobe doctor" in asked or path.name == "wish.yml"
