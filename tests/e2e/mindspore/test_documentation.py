"""What the pages on MindSpore show is what happens: their programs run, in the order in which one reads them."""

import re
import runpy
import sys
import types
from pathlib import Path

import mindspore as ms
import pytest

from msprobe_core import PrecisionDebugger
from msprobe_core.cli import main

REPOSITORY = Path(__file__).parents[3]
PAGES = [REPOSITORY / "docs/mindspore.md", REPOSITORY / "plugins/mindspore/README.md"]
# MindSpore reads its own settings of dumps once in a process; test_kernels.py runs programs like these.
IN_ANOTHER_PROCESS = {"Kernels"}


def programs(page):
    """Return the blocks of Python, with the headings that they are below."""
    found, heading = [], ""
    for title, block in re.findall(r"^#+ ([^\n]*)$|^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        heading = title or heading
        if block and heading not in IN_ANOTHER_PROCESS:
            found.append((heading, block))
    return found


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Run in an empty directory, and close the debugger and leave graph mode at the end."""
    monkeypatch.chdir(tmp_path)
    ms.runtime.launch_blocking()
    yield tmp_path
    end_of_block()


def end_of_block():
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_programs_run_and_record(page, place, recwarn, monkeypatch):
    program = types.ModuleType("program")  # with source and names where MindSpore's compiler looks for them
    monkeypatch.setitem(sys.modules, program.__name__, program)
    shown = programs(page)
    assert shown
    for number, (heading, block) in enumerate(shown):
        source = place / f"{number} {heading}.py"
        source.write_text(block)
        exec(compile(block, source, "exec"), program.__dict__)
        end_of_block()
        for dump_path in re.findall(r"dump_path=\"(\w+)\"", block):
            assert list((place / dump_path).rglob("dump.json")), (heading, dump_path)
    if page.parent.name == "docs":
        listed = re.findall(r"^(saved/.*\.npy)$", page.read_text(), re.MULTILINE)
        found = {str(path.relative_to(place)) for path in place.glob("saved/step0/**/*.npy")}
        assert found == set(listed)
    assert not [warning for warning in recwarn if "msprobe" in str(warning.message)]


def without_run(text):
    """Drop what differs between two runs: process ids, times and directories."""
    text = re.sub(r"proc\d+", "proc", text)
    text = re.sub(r"compare_result_\d{14}", "compare_result", text)
    return re.sub(r"File \S*/", "File ", text)


def run(command, monkeypatch):
    """Run a command line of a page, in this process, which has the frameworks."""
    program, *arguments = command.split()
    if program == "msprobe":
        with pytest.raises(SystemExit):
            main(arguments)
        return
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(REPOSITORY / arguments[0]), run_name="__main__")
    end_of_block()


@pytest.mark.slow
def test_the_comparison_with_pytorch(place, monkeypatch, capsys):
    section = (REPOSITORY / "docs/mindspore.md").read_text().partition("## Comparing with PyTorch\n")[2]
    [block] = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    commands, shown = [], []
    for line in block.splitlines():
        (commands if line.startswith("$ ") else shown).append(line.removeprefix("$ "))
    for command in commands:
        capsys.readouterr()
        run(command, monkeypatch)
    assert without_run(capsys.readouterr().out).splitlines() == without_run("\n".join(shown)).splitlines()
