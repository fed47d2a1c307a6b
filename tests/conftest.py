"""What is collected: tests of a framework where that framework is installed.

`make test` runs the suite in one environment without MindSpore and verl, and their parts in one of their own each; it
checks itself that each has what it is for.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from wording import Snapshot

# What needs more than the core: the files, relative to this directory, and the modules that must be there.
NEEDS = {
    "e2e/*.py": ("torch", "transformers"),
    "e2e/mindspore/*.py": ("mindspore",),
    "e2e/test_view_axes.py": ("selenium",),
    "e2e/test_view_page.py": ("selenium",),
    "contract/test_mindspore.py": ("mindspore",),
    "e2e/verl/*.py": ("verl", "torch"),
    "e2e/jax/*.py": ("flax", "torch"),
    "e2e/trainer/*.py": ("transformers", "accelerate", "torch"),
}
MISSING = {files: [name for name in names if find_spec(name) is None] for files, names in NEEDS.items()}
LEFT_OUT = {files: names for files, names in MISSING.items() if names}

# How long an example takes says more about what else the machine does.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

collect_ignore = [str(path) for files in LEFT_OUT for path in Path(__file__).parent.glob(files)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-wording", action="store_true", help="write tests/data/wording as commands say it now")


@pytest.fixture
def wording_snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """What commands say, against ``tests/data/wording``."""
    return Snapshot(renews=request.config.getoption("--renew-wording"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse what the processes that share the tests would each call differently."""
    if unstable := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"the name of a test has an address, which no two processes have alike: {unstable[0]}")


def pytest_report_header() -> list[str]:
    return [f"left out: tests/{files}, without {' and '.join(names)}" for files, names in LEFT_OUT.items()]
