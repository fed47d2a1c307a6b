"""Files for a public forge: they are valid, and what they run is there."""

import re
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
                assert command.removeprefix("make ") in TARGETS
            if command.startswith(".ci/"):
                assert (REPOSITORY / command).is_file()
            assert "${{ github.event" not in command  # text of strangers is not run
        assert all("@" in step["uses"] for step in job["steps"] if "uses" in step)


def test_everything_that_the_project_has_is_run_somewhere():
    run = "\n".join(command for path in WORKFLOWS for job in read(path)["jobs"].values() for command in commands(job))
    for command in ("make test", "make test-slow", "make site", ".ci/nightly", "make release"):
        assert command in run


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_ask_for_what_is_needed(path):
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    assert all({"type", "id", "attributes"} <= field.keys() for field in form["body"])
    asked = " ".join(field["attributes"]["label"] for field in form["body"])
    assert "msprobe doctor" in asked or path.name == "wish.yml"
