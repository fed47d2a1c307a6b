"""The page of the architecture names every package of the core and every private file of a plugin."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = ("docs/architecture.md", "docs/zh/architecture.md")


def named(page):
    """Return what the page has between backticks in its tables and its text."""
    return set(re.findall(r"`([^`\s]+)`", (REPOSITORY / page).read_text(encoding="utf-8")))


def is_named(file, names):
    return any(file.startswith(name[:-1]) if name.endswith("…") else file == name for name in names)


@pytest.mark.parametrize("page", PAGES)
def test_private_files_of_plugins_are_named(page):
    files = {path.stem for path in REPOSITORY.glob("plugins/*/msprobe/*/_*.py")} - {"__init__"}
    assert len(files) > 50
    names = {name for name in named(page) if name.startswith("_") and name != "_…"}
    assert [file for file in sorted(files) if not is_named(file, names)] == []


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
    files = {path.stem for path in REPOSITORY.glob("plugins/*/msprobe/*/_*.py")}
    files |= {path.name for path in REPOSITORY.glob("plugins/*/msprobe/*/_*") if path.is_dir()}
    private = re.compile(r"_[a-z][a-z_]*…?")
    names = {name for name in named(page) if private.fullmatch(name)} - {"_compiled_call_impl"}
    assert [name for name in sorted(names) if not any(is_named(file, {name}) for file in files)] == []


@pytest.mark.parametrize("page", PAGES)
def test_rooms_are_named(page):
    rooms = {path.parent.name for path in (REPOSITORY / "msprobe_core").glob("*/__init__.py")}
    assert sorted(rooms - named(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_files_of_rooms_exist(page):
    """Each table row about the inside of a room names files of that room, or others by their room or command."""
    table = (REPOSITORY / page).read_text(encoding="utf-8").split('<a id="inside', 1)[-1].split("## Inside the", 1)[-1]
    core = REPOSITORY / "msprobe_core"
    known = {path.stem for path in core.rglob("*.py")} | {path.name for path in core.rglob("*") if path.is_dir()}
    named = set()
    for line in table.split("\n\n")[2].splitlines()[2:]:
        named |= set(re.findall(r"`([a-z][a-z_]*)`", line))
    assert len(named) > 60
    assert sorted(named - known - {"layers", "onpolicy"}) == []  # subcommands
