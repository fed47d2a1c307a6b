"""What is collected: tests of a framework where that framework is installed.

`make test` runs the suite in one environment without MindSpore, and MindSpore's part in another; it checks itself that
each has what it is for.
"""

from importlib.util import find_spec
from pathlib import Path

# What needs more than the core: the files, relative to this directory, and the modules that must be there.
NEEDS = {
    "e2e/*.py": ("torch", "transformers"),
    "e2e/mindspore/*.py": ("mindspore",),
    "contract/test_mindspore.py": ("mindspore",),
}
MISSING = {files: [name for name in names if find_spec(name) is None] for files, names in NEEDS.items()}
LEFT_OUT = {files: names for files, names in MISSING.items() if names}

collect_ignore = [str(path) for files in LEFT_OUT for path in Path(__file__).parent.glob(files)]


def pytest_report_header() -> list[str]:
    return [f"left out: tests/{files}, without {' and '.join(names)}" for files, names in LEFT_OUT.items()]
