"""The benchmark of published bugs: each has its report, is a bug here, and a sample of them is found."""

import zlib

import pytest
import torch

pytest.importorskip("transformers")

from bench.bugs.bug import Bug, Catalogue, Half, Kind, Side, half_of, url_of
from bench.bugs.catalogue import bugs
from bench.bugs.healthy import HEALTHY
from bench.bugs.record import Way, record
from bench.bugs.releases import has
from bench.bugs.runner import run, run_healthy
from bench.bugs.table import render
from bench.faults.answers import Nesting, ask_locate
from bench.faults.scoring import is_right
from bench.faults.truth import Truth

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

QUICK = ("fused Adam decays like AdamW", "head not tied to the embedding")
SLOW = (
    "Mamba2 tiles its groups over heads",
    "multi-query attention without its scale",
    "mask applied after the softmax",
    "gradients in bfloat16 not clipped",
)


def test_every_bug_says_what_it_is():
    assert len(bugs()) >= 40
    for bug in bugs().values():
        assert bug.symptom
        assert bug.place
        assert url_of(bug.report).startswith("https://github.com/")
        assert url_of(bug.fix).rsplit("/", 2)[-2] in {"issues", "commit"}
        assert bool(bug.defective) == bool(bug.fixed), bug.name
        assert bug.defective[:1] != bug.fixed[:1] or not bug.is_real, bug.name
        assert bug.truth.modules or bug.truth.calls or bug.truth.groups
    assert len({bug.kind for bug in bugs().values()}) >= 15


def test_the_halves_are_by_name_and_of_similar_size():
    halves = [bug.half for bug in bugs().values()]
    assert abs(halves.count(Half.TUNED) - halves.count(Half.HELD_OUT)) <= 4
    assert half_of("x") is (Half.HELD_OUT if zlib.crc32(b"x") % 2 else Half.TUNED)


def test_a_name_is_taken_once():
    catalogue = Catalogue()
    bug = Bug("one", Kind.NORM, "a/b#1", "a/b@2", "", "", Truth(), lambda _: None)  # pyright: ignore[reportArgumentType]
    catalogue.add(bug)
    with pytest.raises(ValueError, match="'one'"):
        catalogue.add(bug)
    assert url_of(bug.fix) == "https://github.com/a/b/commit/2"


def test_healthy_pairs_are_of_bugs_that_exist():
    assert {pair.bug for pair in HEALTHY} <= set(bugs())
    assert len({pair.name for pair in HEALTHY}) == len(HEALTHY)


@pytest.mark.parametrize("name", [bug.name for bug in bugs().values() if not bug.is_real and bug.world == 1])
def test_a_recreated_defect_changes_the_training(name):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    prints = [bugs()[name].make(side).fingerprint() for side in (Side.GOLDEN, Side.GOLDEN, Side.TARGET)]
    torch.set_num_threads(threads)
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("name", QUICK)
def test_a_defect_is_named_first_without_calibration(tmp_path, name):
    bug = bugs()[name]
    sides = {side: tmp_path / side.value for side in Side}
    threads = torch.get_num_threads()
    for side, place in sides.items():
        record(bug, side, place, Way(plain=True))
    torch.set_num_threads(threads)
    answer = ask_locate(sides[Side.TARGET], sides[Side.GOLDEN], tmp_path / "locate")
    assert answer.verdict == "fault"
    assert is_right(answer.suspects[0], bug.truth, Nesting(sides[Side.TARGET], sides[Side.GOLDEN]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_place_is_named_first(tmp_path, name):
    bug = bugs()[name]
    if not (has(bug.defective) and has(bug.fixed)):
        pytest.skip("its releases can neither be found nor installed")
    result = run(bug, "same", tmp_path, "statistics")
    assert result.changes
    assert result.place is not None
    assert result.place.is_first
    assert result.compare.verdict == "fault"
    assert f"| {name} | {bug.kind.value} |" in render(bugs(), [result], [])


@pytest.mark.slow
def test_a_healthy_pair_agrees(tmp_path):
    result = run_healthy(
        next(pair for pair in HEALTHY if pair.name == "Llama on other kernels"), tmp_path, "statistics"
    )
    assert result.changes
    assert result.locate.verdict == "agree"
