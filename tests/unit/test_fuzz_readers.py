"""Damaged dumps are answered: the quick part of ``bench/fuzz_readers.py``."""

import importlib.util
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")

_spec = importlib.util.spec_from_file_location("fuzz_readers", Path(__file__).parents[2] / "bench" / "fuzz_readers.py")
fuzz_readers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz_readers)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return fuzz_readers.seeds(tmp_path_factory.mktemp("seeds") / "seeds")


@given(number=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_damaged_dumps_are_answered(seeds, tmp_path_factory, number):
    rng = random.Random(number)
    root = tmp_path_factory.mktemp("fuzz")
    sound = rng.choice(seeds)
    directory = shutil.copytree(sound, root / "damaged")
    (root / "scratch").mkdir()
    fuzz_readers.damage(rng, directory)
    answers = Counter()
    fuzz_readers.use(directory, sound, root / "scratch", answers)
    assert answers["compare: run"] == 1


def test_the_fuzzer_notices(seeds, tmp_path, monkeypatch):
    """It must be able to fail."""

    def defective(*_arguments):
        raise KeyError("x")

    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(fuzz_readers, "read_stacks", defective)
    with pytest.raises(KeyError):
        fuzz_readers.use(seeds[0], seeds[0], tmp_path / "scratch", Counter())
