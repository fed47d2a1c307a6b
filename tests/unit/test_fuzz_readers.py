"""Damaged files are answered: the quick part of ``make fuzz``, and that it leaves no reader out."""

import ast
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from foreign_files import READERS

pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from fuzz.__main__ import DUMPS, Defects, fuzz  # noqa: E402  # what is above makes it importable
from fuzz.targets import IN_DUMPS, TARGETS, Target  # noqa: E402

QUICK = [name for name in TARGETS if name not in {"results", "verl", "noise"}]
"""Those that do not run several commands each time."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_damaged_files_are_answered(tmp_path, seed):
    pytest.importorskip("google.protobuf", reason="writes a file of another tool")
    defects = Defects(tmp_path / "defects")
    answers = fuzz(QUICK, seed, lambda number: number >= 3 * len(QUICK), defects)
    assert not defects.counts
    assert answers.total() == 3 * len(QUICK)


def test_damaged_dumps_are_answered(tmp_path):
    defects = Defects(tmp_path / "defects")
    answers = fuzz([DUMPS], 5, lambda number: number >= 6, defects)
    assert not defects.counts
    assert answers["compare: run"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TARGETS if name not in QUICK])
def test_damaged_results_are_answered(tmp_path, name):
    pytest.importorskip("msprobe.verl")
    defects = Defects(tmp_path / "defects")
    fuzz([name], 7, lambda number: number >= 8, defects)
    assert not defects.counts


def test_the_fuzzer_notices(tmp_path, monkeypatch):
    """It must be able to fail: at what is no sentence, at an internal error, and at what never ends."""

    def raising(error):
        def use(_directory):
            raise error

        return use

    def write(directory):
        (directory / "x").write_text("sound")

    def only_damaged(use):
        return lambda directory: (directory / "x").read_bytes() == b"sound" or use(directory)

    made = {
        "defective": Target([], write, only_damaged(raising(KeyError("x")))),
        "endless": Target([], write, only_damaged(lambda _: signal.raise_signal(signal.SIGALRM))),
        "answering": Target([], write, only_damaged(raising(ValueError("x")))),
    }

    def late(_number, _frame):
        raise AssertionError("took more")

    monkeypatch.setattr("fuzz.__main__.TARGETS", made)
    former = signal.signal(signal.SIGALRM, late)
    try:
        for name in made:
            defects = Defects(tmp_path / name)
            fuzz([name], 1, lambda number: number >= 3, defects)
            assert defects.counts, name
            assert (tmp_path / name / "defect0" / "x").exists()
    finally:
        signal.signal(signal.SIGALRM, former)


def test_a_seed_repeats_its_run(tmp_path):
    runs = [fuzz(["tensor", "config"], 3, lambda number: number >= 10, Defects(tmp_path / "d")) for _ in range(2)]
    assert runs[0] == runs[1] != Counter()


# --- every reader has a target --------------------------------------------------------------------------------------

OPENING = {"open_plain", "read_plain", "read_text", "read_yaml", "load_struct"}
"""Functions by which files of others are opened."""


def opens_files(path):
    """Whether a module imports what opens files of others."""
    text = path.read_text()
    names = {
        alias.name
        for node in ast.walk(ast.parse(text if any(name in text for name in OPENING) else ""))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return bool(names & OPENING)


def test_every_reader_is_fuzzed():
    rooms = {
        REPOSITORY / "msprobe_core": "",
        **{REPOSITORY / "plugins" / name / "msprobe" / name: f"{name}/" for name in ("pytorch", "mindspore", "verl")},
    }
    found = {
        prefix + str(path.relative_to(room).with_suffix(""))
        for room, prefix in rooms.items()
        for path in room.rglob("*.py")
        if opens_files(path) and "untrusted" not in path.parts and path.name != "__init__.py"
    }
    covered = {module for target in TARGETS.values() for module in target.modules} | set(IN_DUMPS)
    assert found - covered == set()


def test_targets_are_of_modules_that_are_there():
    for name, target in TARGETS.items():
        for module in target.modules:
            plugin, _, rest = module.partition("/")
            places = (
                REPOSITORY / "msprobe_core" / f"{module}.py",
                REPOSITORY / "plugins" / plugin / "msprobe" / plugin / f"{rest}.py",
            )
            assert any(place.exists() for place in places), (name, module)


def test_every_known_reader_has_a_target():
    """`READERS` are those that are tried with pipes and bombs."""
    texts = (REPOSITORY / "tests" / "fuzz" / "targets.py").read_text()
    in_results = {"dump.json", "dump.arrow", "samples.json", "mapping.yaml", "live.json", "table.csv", "table.xlsx",
                  "locate.json", "compare.json", "request.json"}  # fmt: skip
    assert {name for name in READERS if name not in texts} <= in_results
