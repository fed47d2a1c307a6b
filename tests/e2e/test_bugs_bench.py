"""The benchmark of published bugs: each has its report, is a bug here, and a sample of them is found."""

import zlib
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from bench.bugs import checks, runner
from bench.bugs.bug import Bug, Catalogue, Half, Kind, Side, half_of, url_of
from bench.bugs.catalogue import bugs, subject_of, variants
from bench.bugs.healthy import HEALTHY
from bench.bugs.peers import ALL_CLOSE, DEBUG_MODE, ask_peers
from bench.bugs.record import Way, record
from bench.bugs.releases import has
from bench.bugs.runner import Asked, run, run_healthy
from bench.bugs.table import render
from bench.faults import answers
from bench.faults.answers import Nesting, ask_locate
from bench.faults.scoring import is_right
from bench.faults.truth import Truth

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

QUICK = ("fused Adam decays like AdamW", "head not tied to the embedding")
PEERS = {
    "fused Adam decays like AdamW": {DEBUG_MODE: ("fault", True), ALL_CLOSE: ("fault", True)},
    "head not tied to the embedding": {DEBUG_MODE: ("fault", True), ALL_CLOSE: ("fault", True)},
}
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


def test_healthy_pairs_are_at_least_sixty_of_programs_that_exist():
    assert all(subject_of(pair.subject) for pair in HEALTHY)
    assert len({pair.name for pair in HEALTHY}) == len(HEALTHY) >= 60
    # Only a program of two ways has a target that is healthy.
    assert all(pair.subject in variants() for pair in HEALTHY if pair.side is Side.TARGET)


@pytest.mark.parametrize("name", [bug.name for bug in bugs().values() if not bug.is_real and bug.world == 1])
def test_a_recreated_defect_changes_the_training(name):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    prints = [bugs()[name].make(side).fingerprint() for side in (Side.GOLDEN, Side.GOLDEN, Side.TARGET)]
    torch.set_num_threads(threads)
    assert prints[0] == prints[1] != prints[2]


@pytest.fixture
def recordings_fork(has_transformers_imported, transformers_python, monkeypatch):
    """Let each process of the benchmark have imported PyTorch, and transformers unless it has another release."""
    for module in (answers, checks, runner):
        monkeypatch.setattr(module, "MSPROBE", str(Path(transformers_python).with_name("msprobe")))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_defect_is_named_first_without_calibration(recordings_fork, tmp_path, name):
    bug = bugs()[name]
    sides = {side: tmp_path / side.value for side in Side}
    threads = torch.get_num_threads()
    for side, place in sides.items():
        record(bug, side, place, Way(plain=True, observed=True))
    torch.set_num_threads(threads)
    peers = ask_peers(sides[Side.TARGET], sides[Side.GOLDEN], bug.world, bug.truth, reference=None)
    assert {name: (peer.verdict, peer.is_first) for name, peer in peers.items()} == PEERS[name]
    same = ask_peers(sides[Side.GOLDEN], sides[Side.GOLDEN], bug.world, bug.truth, reference=None)
    assert {peer.verdict for peer in same.values()} == {"agree"}
    answer = ask_locate(sides[Side.TARGET], sides[Side.GOLDEN], tmp_path / "locate")
    assert answer.verdict == "fault"
    assert is_right(answer.suspects[0], bug.truth, Nesting(sides[Side.TARGET], sides[Side.GOLDEN]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_place_is_named_first(recordings_fork, tmp_path, name):
    bug = bugs()[name]
    if not (has(bug.defective) and has(bug.fixed)):
        pytest.skip("its releases can neither be found nor installed")
    result = run(bug, "same", Asked(tmp_path))
    assert result.changes
    assert result.place is not None
    assert result.place.is_first
    assert result.compare.verdict == "fault"
    assert f"| {name} | {bug.kind.value} |" in render(bugs(), [result], [])


@pytest.mark.slow
def test_a_healthy_pair_agrees(recordings_fork, tmp_path):
    pair = next(pair for pair in HEALTHY if pair.name == "Llama on other kernels")
    result = run_healthy(pair, Asked(tmp_path, peers=True))
    assert result.changes
    assert result.locate.verdict == "agree"
    assert result.peers[DEBUG_MODE].verdict == "fault"  # hashes of every kernel's own rounding differ
