"""Units of work fail alone and are interrupted together, whatever is done with them."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.calibrate import calibrate
from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.run import RunOptions, compare_run
from msprobe_core.execute.units import run_units
from msprobe_core.hookspecs import hookimpl
from msprobe_core.interrupts import Interrupts
from msprobe_core.locate import LocateOptions, locate
from msprobe_core.plugins import Plugin, registry
from msprobe_core.report import TableOptions
from msprobe_core.report.files import ResultFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals")


def compared(root, progress):
    writer = ResultFiles(root / "out", TableOptions(stamp="1"))
    found, _ = compare_run(root / "target", root / "golden", writer, run=RunOptions(), progress=progress)
    return found.missing, [unit.rank for unit in found.units]


def located(root, progress):
    found = locate(root / "target", root / "golden", LocateOptions(), progress)
    return found.notes, [0] if found.num_nodes == 1 and found.examined == "1 step, 1 rank" else None


def calibrated(root, progress):
    found = calibrate(root / "golden", [root / "target"], progress=progress)
    return found.missing, [int(dump.label[-1]) for dump in found.dumps]


DRIVERS = [compared, located, calibrated]


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
    (note,) = [note for note in told if reason in note]
    assert note.startswith("step0/rank1")
    assert ranks == [0]


# --- the executor -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    label: str
    files: Sequence[Path]


def pid_of(_unit):
    return os.getpid()


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
