"""Processes killed at random moments: nothing flushed is lost, and nothing that is not whole reads as whole."""

import random
from collections import Counter

import polars as pl
import pytest
from killed_training import KINDS, WINDOWS, record_whole_step, run_until_killed

from msprobe_core.compare import compare_dumps
from msprobe_core.errors import DumpError
from msprobe_core.locate import LocateVerdict, locate
from msprobe_core.model import EndState
from msprobe_core.overflow import search
from msprobe_core.store.layout import find_steps, find_units
from msprobe_core.store.reading import read_dump

NUM_KILLS = {1: 12, 2: 5}
"""Of each kind, by the number of processes; each of two kills two dumps."""

LONGEST_S = {1: 0.5, 2: 1.0}
"""Of a run from its first dump on, by the number of processes; a step takes some milliseconds."""


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """Return a whole step of a kind, recorded once."""
    made = {}

    def golden(kind):
        if kind not in made:
            directory = tmp_path_factory.mktemp("golden")
            if KINDS[kind].get("writer") == "arrow":
                pytest.importorskip("pyarrow")
            made[kind] = record_whole_step(directory, KINDS[kind])
        return made[kind]

    return golden


def check(killed, golden, seen):
    """Look at all that a killed process has left, and count what it was."""
    whole = read_dump(golden)
    num_calls, entries = whole.ending.num_calls, set(whole.frame["entry"])
    assert whole.ending.state is EndState.COMPLETE
    steps = find_steps(killed.directory)
    assert set(steps) >= {*killed.ended, *killed.windows}
    for step, directory in steps.items():
        try:
            unit = next((unit for unit in find_units(directory) if unit.rank == killed.rank), None)
            if unit is None:  # the other rank was ahead
                assert step not in killed.windows
                continue
            dump = read_dump(unit.directory)
        except DumpError:  # killed before anything of it was whole, or before its directory had a rank's
            assert step not in killed.windows
            seen["unreadable"] += 1
            continue
        found = dump.ending
        seen[found.state.value] += 1
        assert set(dump.frame["entry"]) <= entries
        assert dump.frame["entry"].n_unique() == found.num_calls
        # What was said to be on disk is.
        assert found.num_calls >= num_calls * killed.windows.get(step, 0) // WINDOWS
        if step in killed.ended:
            assert found.state is EndState.COMPLETE
        # What is not all there is not called so.
        if found.num_calls < num_calls:
            assert found.state is not EndState.COMPLETE
            assert found.state is EndState.EARLY or found.num_windows < WINDOWS
            judge(unit.directory, golden, found)
        for name in dump.frame.filter(pl.col("file_name").is_not_null())["file_name"].unique():
            dump.open_tensor(name).read()


def judge(unit, golden, found):
    """What is there is healthy: no command says otherwise, and none says that it is all."""
    if not found.num_calls:
        return
    compared = compare_dumps(unit, golden)
    assert not compared.differs, [unit.first_fault for unit in compared.units]
    assert not compared.agrees
    assert locate(unit, golden).verdict is LocateVerdict.INSUFFICIENT
    if found.state is EndState.EARLY:
        assert search(unit).incomplete


def kill(tmp_path, golden, kind, world, number, seen):
    rng = random.Random(f"{kind} {world} {number}")
    directory = tmp_path / f"{world}-{number}"
    for killed in run_until_killed(directory, KINDS[kind], world=world, wait_s=rng.uniform(0, LONGEST_S[world])):
        check(killed, golden(kind), seen)


@pytest.mark.parametrize("world", NUM_KILLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_never_reads_as_whole(tmp_path, golden, kind, world):
    kill(tmp_path, golden, kind, world, 0, Counter())


@pytest.mark.slow
def test_many_kills(tmp_path, golden, capsys):
    lines = []
    for kind in KINDS:
        for world, number in NUM_KILLS.items():
            seen = Counter()
            for i in range(number):
                kill(tmp_path / kind, golden, kind, world, i + 1, seen)
            lines.append(
                f"| {kind} | {world} | {number * world} | "
                + " | ".join(str(seen[state]) for state in ("complete", "stopped", "early", "unreadable"))
                + " |"
            )
    with capsys.disabled():
        print("\n| kind | processes | kills | complete | stopped | ended early | nothing readable |")
        print("\n".join(lines))
