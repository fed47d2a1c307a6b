"""The search for the modules that explain a value of a step, on steps that are made up, and its files."""

import csv
import json
import sys

import numpy as np
import pytest
from bisect_results import result
from numpy_layers import Network

from msprobe_core.confirm import load_function, load_model
from msprobe_core.errors import CompareError, ConfigError, SessionError, StoreError
from msprobe_core.free_benchmark.bisect_files import BISECT_RESULT, read_bisect, write_bisect
from msprobe_core.free_benchmark.bisection import Bisection, default_pairs, pairs_for_one
from msprobe_core.free_benchmark.step_function import training_step

SIZE = 400


def searched(num_modules, effects, *, noise=0.02, pairs=None, joint=(), failing=(), repeat=0.0, seed=0):
    """Search among modules of which some have effects, each in a direction of its own; all change the rounding."""
    random = np.random.default_rng(seed)
    directions = {place: random.standard_normal(SIZE) / SIZE**0.5 for place in (*effects, *joint)}
    rounding = noise * random.standard_normal(SIZE) / SIZE**0.5

    def value_of(part):
        found = sum((effects[place] * directions[place] for place in effects if place in part), np.zeros(SIZE))
        if joint and all(place in part for place in joint):
            found = found + directions[joint[0]]
        return found + (noise * random.standard_normal(SIZE) / SIZE**0.5 if len(part) else rounding)

    def measure(part):
        return None if len(part) == 1 and part[0] in failing else value_of(part)

    base = value_of(range(0))
    search = Bisection(
        num_modules,
        base,
        value_of(range(num_modules)),
        base + repeat,
        0.0,
        pairs or default_pairs(num_modules),
        measure,
    )
    search.run()
    return search


@pytest.mark.parametrize("culprit", [0, 1, 77, 99, 100, 199])
def test_one_module_among_200_takes_nine_pairs(culprit):
    search = searched(200, {culprit: 1.0})
    assert search.single is not None
    assert list(search.single.modules) == [culprit]
    assert search.single.share == pytest.approx(1, abs=0.1)
    assert search.num_pairs <= 9
    assert sum(len(part.modules) for part in search.parts) == 200


@pytest.mark.parametrize(("num_modules", "expected"), [(1, 1), (2, 2), (3, 3), (200, 9), (256, 9), (257, 10)])
def test_number_of_pairs(num_modules, expected):
    assert pairs_for_one(num_modules) == expected


def test_two_modules_share_the_change():
    search = searched(64, {5: 1.0, 50: 0.9})
    assert search.single is None
    assert [list(part.modules) for part in search.sharers] == [[5], [50]]


def test_with_few_pairs_sets_are_told_as_a_whole():
    search = searched(64, {5: 1.0, 50: 0.9}, pairs=3)
    assert search.num_pairs == 3
    assert search.single is None
    assert [any(place in part.modules for place in (5, 50)) for part in search.sharers] == [True, True]


def test_modules_that_act_only_together_stay_together():
    search = searched(16, {}, joint=(2, 13))
    assert search.single is None
    assert [(len(part.modules), part.is_joint) for part in search.sharers] == [(16, True)]


@pytest.mark.parametrize("seed", range(8))
def test_rounding_alone_accuses_no_module(seed):
    search = searched(100, {}, noise=1.0, seed=seed)
    assert search.single is None
    assert search.sharers == []


def test_what_a_failing_half_would_give_is_inferred():
    search = searched(2, {1: 1.0}, failing=(1,))
    assert [(list(part.modules), part.is_inferred) for part in search.ranked] == [([1], True), ([0], False)]
    assert search.ranked[0].share == pytest.approx(1, abs=0.1)


def test_a_step_that_differs_from_itself_is_not_searched():
    search = searched(8, {3: 1.0}, repeat=0.1)
    assert not search.is_repeatable
    assert search.measured == []


def test_no_difference_is_no_search():
    search = Bisection(8, np.ones(1), np.ones(1), np.ones(1), 1e-8, 9, lambda _part: np.ones(1))
    search.run()
    assert not search.has_difference
    assert (search.measured, search.num_pairs) == ([], 1)


# --- files --------------------------------------------------------------------------------------------------------


def test_results_are_read_as_they_were_written(tmp_path):
    found = result()
    json_path, table = write_bisect(found, tmp_path / "new")
    assert read_bisect(json_path) == found
    heading, first, second = csv.reader(table.read_text().splitlines())
    assert heading[:4] == ["rank", "modules", "count", "share"]
    assert first[:4] == ["1", "a", "1", "0.9"]
    assert second[1:3] == ["b … c: 2 modules", "2"]
    assert json_path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", ["", "[]", '{"version": 1}', '{"version": 1, "parts": [{"modules": 3}]}', "\x00", '{"parts": [{}]}']
)
def test_damaged_results_are_refused(tmp_path, content):
    path = tmp_path / "bisect.json"
    path.write_text(content)
    with pytest.raises(CompareError, match="is not what msprobe free_benchmark bisect writes"):
        read_bisect(path)


def test_results_of_a_later_version_are_refused(tmp_path):
    path, _ = write_bisect(result(), tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(CompareError, match="of version 2"):
        read_bisect(path)


def test_foreign_files_are_not_replaced(tmp_path):
    write_bisect(result(), tmp_path)
    BISECT_RESULT.refuse_foreign(tmp_path)
    (tmp_path / "bisect.csv").write_text("mine")
    with pytest.raises(StoreError, match="not replaced"):
        BISECT_RESULT.refuse_foreign(tmp_path)


# --- the step -----------------------------------------------------------------------------------------------------


def test_a_function_that_sees_no_model_is_refused():
    with pytest.raises(SessionError, match="can see no model"):
        training_step(lambda: 1.0, "train.py:step")


def test_a_function_that_fails_is_named():
    with pytest.raises(SessionError, match=r"train\.py:step failed \(ZeroDivisionError"):
        training_step(lambda: 1 / 0, "train.py:step")


def test_a_program_that_exits_gives_no_verdict(tmp_path):
    """Its status, mostly 0, would be that of the command."""
    with pytest.raises(SessionError, match=r"train\.py:step failed \(SystemExit: 0\)"):
        training_step(lambda: sys.exit(0), "train.py:step")
    network = Network()
    later = training_step(lambda: (network, None, lambda: sys.exit(0)), "train.py:step")
    with pytest.raises(SessionError, match=r"train\.py:step failed \(SystemExit: 0\)"):
        later.run()
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match=r"script\.py cannot be imported \(SystemExit: 0\)"):
        load_function(f"{script}:step", argument="STEP")
    script.write_text("import sys\nmodel = sys.exit\n")
    with pytest.raises(ConfigError, match=r"model\(\) failed \(SystemExit\)"):
        load_model(f"{script}:model")
