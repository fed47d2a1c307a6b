"""Names that scripts for other releases use: each is found where it is now, or says what to use instead."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import msprobe_core
from msprobe_core.capture import PrecisionDebugger
from msprobe_core.errors import SessionError
from msprobe_core.former_names.imports import advice_for, former_attribute, offer_former_names
from msprobe_core.former_names.table import ABSENT, COMMANDS, MOVED, PROGRAMS, TASKS

REPOSITORY = Path(msprobe_core.__file__).parents[1]


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_here_says_what_to_use(name):
    offer_former_names()
    # Some are modules that hold other names, which have moved.
    is_module = name == "msprobe.visualization" or any(moved.startswith(f"{name}.") for moved in (*MOVED, *PROGRAMS))
    parent, _, last = f"{name}.something".rpartition(".") if is_module else name.rpartition(".")
    assert not hasattr(importlib.import_module(parent), last)
    for statement in (f"from {parent} import {last}", f"import {parent}.{last}.inner"):
        with pytest.raises(ModuleNotFoundError) as caught:
            exec(statement, {})
        assert str(caught.value) == f"{parent}.{last}: {ABSENT[name]}"


@pytest.mark.parametrize("name", MOVED)
def test_what_is_elsewhere_is_found_where_it_was(name):
    offer_former_names()
    module, _, attribute = MOVED[name].partition(":")
    assert importlib.util.find_spec(module) is not None
    parent, _, last = name.rpartition(".")
    holder = importlib.import_module(parent)
    # What is a framework plugin's is loaded by the tests of that framework.
    if module.startswith("msprobe_core"):
        found = getattr(holder, last)
        assert found is getattr(importlib.import_module(module), attribute) or callable(found)


def test_a_module_that_was_a_function_too_is_called_as_that():
    offer_former_names()
    module = importlib.import_module("msprobe.pytorch.compare.pt_compare")
    assert dir(module) == ["compare", "pt_compare"]
    with pytest.raises(TypeError, match=r"'msprobe\.pytorch\.compare\.pt_compare' is not callable"):
        module({}, "output")
    module = importlib.import_module("msprobe.pytorch.compare")
    with pytest.raises(msprobe_core.errors.ConfigError, match="'npu_json_path' is missing"):
        module({}, "output")


def test_names_of_nobody_fail_as_ever():
    offer_former_names()
    with pytest.raises(ImportError, match=r"cannot import name 'nothing' from 'msprobe\.pytorch'"):
        exec("from msprobe.pytorch import nothing", {})
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'msprobe\.pytorch\.nothing'"):
        importlib.import_module("msprobe.pytorch.nothing")
    with pytest.raises(AttributeError, match=r"module 'msprobe\.core' has no attribute '__wrapped__'$"):
        former_attribute("msprobe.core", "__wrapped__")
    assert advice_for("msprobe.pytorch.seed_all") is None


def test_a_plugin_that_is_not_installed_is_not_made_up():
    # `python -S` has the core on its path and none of the plugins.
    code = (
        "import sys, importlib.util; sys.path[:0] = [sys.argv[1]]; import msprobe.core\n"
        "print(importlib.util.find_spec('msprobe.pytorch'))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(REPOSITORY)], capture_output=True, text=True, check=False, cwd="/"
    )
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_members_of_older_debuggers():
    with pytest.raises(SessionError, match="no PrecisionDebugger has been made yet"):
        PrecisionDebugger.monitor(None)
    assert PrecisionDebugger.forward_backward_dump_end.__func__ is PrecisionDebugger.stop.__func__


def test_the_page_has_the_tables():
    text = (REPOSITORY / "docs" / "migration.md").read_text()
    page = text.partition("## Names of other releases\n")[2].splitlines()
    places = {name: f"`{place.replace(':', '.')}`" for name, place in (MOVED | PROGRAMS).items()}
    expected = [f"| `{name}` | {text} |" for table in (places, ABSENT, COMMANDS, TASKS) for name, text in table.items()]
    # Line by line, so that what is missing can be copied from the message.
    assert [line for line in expected if line not in page] == []
    assert len([line for line in page if line.startswith("| `")]) == len(expected) + 6
