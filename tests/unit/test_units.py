"""Units of work fail alone and are interrupted together, whatever is done with them."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.calibrate import calibrate
from msprobe_core.cli.main import main
from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.run import RunOptions, compare_run
from msprobe_core.errors import DumpError
from msprobe_core.execute.units import run_units
from msprobe_core.hookspecs import hookimpl
from msprobe_core.interrupts import Interrupts
from msprobe_core.locate import LocateOptions, engine, locate
from msprobe_core.plugins import Plugin, registry
from msprobe_core.report.files import ResultFiles, TableOptions
from msprobe_core.view.build import build
from msprobe_core.view.stored_graphs import StoredGraphs
from msprobe_core.view.suspects import location_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals")


def compared(root, progress):
    writer = ResultFiles(root / "out", TableOptions(stamp="1"))
    found, _ = compare_run(root / "target", root / "golden", writer, run=RunOptions(), progress=progress)
    return found.missing, [unit.rank for unit in found.units]


def located(root, progress):
    found = locate(root / "target", root / "golden", LocateOptions(), progress)
    return found.notes, [0] if found.num_nodes == 1 and str(found.examined) == "1 step, 1 rank" else None


def calibrated(root, progress):
    found = calibrate(root / "golden", [root / "target"], progress=progress)
    return found.missing, [int(dump.label[-1]) for dump in found.dumps]


def viewed(root, progress):
    with closing(StoredGraphs()) as graphs:
        found = build(root / "target", root / "golden", graphs, progress=progress)
    return found.notes, [unit.rank for unit in found.units if unit.nodes]


DRIVERS = [compared, located, calibrated, viewed]


class _Plugged:
    """A dump that does something after it was read, when its notes are asked for."""

    def __init__(self, dump, act):
        self._dump = dump
        self._act = act

    def __getattr__(self, name):
        return getattr(self._dump, name)

    @property
    def notes(self):
        self._act()
        return self._dump.notes


class _Reader:
    """Reads the golden dump of rank 1, the last one that is read."""

    name = "plugged"

    def __init__(self, act):
        self.act = act

    def recognises(self, path):
        return path.match("golden/step0/rank1")

    def read(self, path):
        from msprobe_core.store.json_reader import JsonReader

        return _Plugged(JsonReader().read(path), self.act)


@pytest.fixture
def runs(tmp_path):
    """Two runs of two ranks, and what has something happen in the middle of comparing rank 1."""
    for side in ("target", "golden"):
        for rank in range(2):
            data = {"Functional.linear.0.forward": api(tensor([1.0, 3.0]), output=tensor([1.0, 2.0]))}
            write_dump(tmp_path / side / "step0" / f"rank{rank}", data)

    def plug(act):
        class Module:
            """Offers the reader."""

            @staticmethod
            @hookimpl(tryfirst=True)
            def msprobe_register_readers():
                return [_Reader(act)]

        registry().add(Plugin("plugged", None, "test"), lambda: Module)
        return tmp_path

    yield plug
    registry().manager.unregister(name="plugged")


@pytest.mark.parametrize("error", [None, TypeError("'<unprintable str object>'")], ids=["unseen", "as an error"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_interruption_that_native_code_swallows_ends_all_units(runs, driver, error):
    def lose():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        if error is not None:
            raise error

    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts():
        driver(runs(lose), lambda *call: done.append(call[0]))
    assert done == [1]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "there was not enough memory; give fewer --workers"),
        (ZeroDivisionError("planted"), "internal error (ZeroDivisionError: planted)"),
    ],
    ids=["memory", "error"],
)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_rank_that_fails_is_named_and_the_others_are_judged(runs, driver, error, reason):
    def fail():
        raise error

    told, ranks = driver(runs(fail), None)
    texts = [getattr(note, "text", note) for note in told]  # of findings, of pages, or of themselves
    notes = [text for text in texts if reason in text]
    assert notes
    assert all(note.startswith("step0/rank1") for note in notes)
    assert ranks == [0]


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_page_leaves_no_temporary_files_whatever_ends_it(runs, monkeypatch, is_interrupted):
    def end():
        (place,) = temporary.iterdir()
        modes = [path.stat().st_mode & 0o777 for path in (place, *place.iterdir())]
        seen.append(modes)
        if is_interrupted:
            signal.raise_signal(signal.SIGINT)
        raise DumpError("planted")

    seen = []
    root = runs(end)
    temporary = root / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    arguments = ["view", str(root / "target"), str(root / "golden"), "-o", str(root / "page.html")]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == (130 if is_interrupted else 2)
    assert seen[0] == [0o700, 0o600]  # the directory, and what rank 0 came to
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("has_location", [False, True])
def test_a_page_compares_each_pair_once(runs, monkeypatch, has_location):
    root = runs(lambda: None)
    for step in (1, 2):
        for side in ("target", "golden"):
            shutil.copytree(root / side / "step0", root / side / f"step{step}")
    # The search ends at the first step; the page shows all of them.
    wrong = api(tensor([1.0, 3.0]), output=tensor([9.0, 2.0]))
    write_dump(root / "target/step0/rank0", {"Functional.linear.0.forward": wrong})
    located = locate(root / "target", root / "golden") if has_location else None
    compared = []
    plain = engine.compare_unit

    def counted(pair, options, **kwargs):
        compared.append(pair.label)
        return plain(pair, options, **kwargs)

    monkeypatch.setattr(engine, "compare_unit", counted)
    with closing(StoredGraphs()) as graphs:
        page = build(
            root / "target", root / "golden", graphs, location=None if located is None else location_of(located)
        )
    assert compared == [unit.label for unit in page.units]
    assert len(compared) == 6
    assert page.culprits


# --- the executor -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    label: str
    files: Sequence[Path]


def pid_of(_unit):
    return os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "megabytes", "is_elsewhere"), [("json", 7, False), ("json", 9, True), ("arrow", 1, True)]
)
def test_processes_are_started_for_much_to_do_only(tmp_path, suffix, megabytes, is_elsewhere):
    units = [_Unit(f"rank{rank}", [tmp_path / f"{rank}.{suffix}"]) for rank in range(2)]
    for unit in units:
        with unit.files[0].open("wb") as file:
            file.truncate(megabytes << 20)
    found = {}
    assert run_units(units, pid_of, found.__setitem__) == {}
    assert sorted(found) == [0, 1]
    assert (os.getpid() not in found.values()) == is_elsewhere


def test_a_pair_has_the_files_of_all_ranks_that_are_merged(tmp_path):
    ranks = [tmp_path / f"rank{rank}" for rank in range(3)]
    for rank in ranks:
        write_dump(rank, {})
    pair = UnitPair("", None, None, tmp_path, ranks[2], target_parts=(ranks[0], ranks[1]))
    assert list(pair.files) == [rank / "dump.json" for rank in ranks]
