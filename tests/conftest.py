"""What is collected: tests of a framework where that framework is installed.

`make test` runs the suite in one environment without MindSpore and verl, and their parts in one of their own each; it
checks itself that each has what it is for.
"""

import argparse
import gc
import os
from collections import defaultdict
from collections.abc import Iterator
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

END_TO_END = Path(__file__).parent / "e2e"

# How many variants of a parametrized end-to-end test the quick run takes: evenly from all, so always the same ones.
QUICK_VARIANTS = 1

# How long an example takes says more about what else the machine does. Examples are the same each time, so that a
# failure is of the change that is tested; others are tried once a night.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("nightly", settings.get_profile("patient"), derandomize=False)
settings.load_profile(os.environ.get("MSPROBE_EXAMPLES", "patient"))

collect_ignore = [str(path) for files in LEFT_OUT for path in Path(__file__).parent.glob(files)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-wording", action="store_true", help="write tests/data/wording as commands say it now")
    parser.addoption("--all-variants", action="store_true", help="mark no variants of end-to-end tests as slow")
    parser.addoption("--share", type=_share, default=(1, 1), metavar="K/N", help="of every N tests, run the Kth only")


def _share(text: str) -> tuple[int, int]:
    number, _, total = text.partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise argparse.ArgumentTypeError(f"a share is K/N with K from 1 to N, such as 1/4; this is {text!r}")
    return int(number), int(total)


@pytest.fixture
def wording_snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """What commands say, against ``tests/data/wording``."""
    return Snapshot(renews=request.config.getoption("--renew-wording"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before and after tests are selected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Refuse names of tests that differ between the processes that run them; mark variants as slow; take the share."""
    if not config.getoption("--all-variants"):
        _leave_variants_to_the_slow_run(items)
    if unstable := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"the name of a test has an address, which no two processes have alike: {unstable[0]}")
    yield
    number, total = config.getoption("--share")
    taken = items[number - 1 :: total]
    config.hook.pytest_deselected(items=[item for place, item in enumerate(items) if place % total != number - 1])
    items[:] = taken


def pytest_collection_finish() -> None:
    """Spare the garbage collector, and searches of all objects, the million that imports and collection have made."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let objects be freed as they usually are when a process ends."""
    gc.unfreeze()


def _leave_variants_to_the_slow_run(items: list[pytest.Item]) -> None:
    """Mark all but a few variants of each parametrized end-to-end test as slow, so that one of the runs has each."""
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        is_marked = any(item.get_closest_marker(name) for name in ("slow", "nightly"))
        if END_TO_END in item.path.parents and hasattr(item, "callspec") and not is_marked:
            variants[item.nodeid.partition("[")[0]].append(item)
    for found in variants.values():
        stride = -(-len(found) // QUICK_VARIANTS)
        for number, item in enumerate(found):
            if number % stride:
                item.add_marker(pytest.mark.slow)


def pytest_report_header() -> list[str]:
    return [f"left out: tests/{files}, without {' and '.join(names)}" for files, names in LEFT_OUT.items()]
