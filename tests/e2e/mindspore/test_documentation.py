"""What the pages on MindSpore show is what happens: their programs run, in the order in which one reads them."""

import re
import sys
import types
from pathlib import Path

import mindspore as ms
import pytest

from msprobe_core import PrecisionDebugger

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
    """Run in an empty directory, and leave neither a debugger nor static graphs behind."""
    monkeypatch.chdir(tmp_path)
    ms.runtime.launch_blocking()
    yield tmp_path
    end_of_block()


def end_of_block():
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()
    ms.set_context(mode=ms.PYNATIVE_MODE)


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
