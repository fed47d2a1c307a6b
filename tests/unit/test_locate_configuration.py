"""The precondition of a search that the runs were configured alike, by the manifests beside their dumps."""

from __future__ import annotations

from pathlib import Path

import pytest

from msprobe_core.compare.pairs import UnitPair, find_pairs
from msprobe_core.config_check.differences import ConfigResult, Difference, Section, SectionResult, Severity
from msprobe_core.findings import noted
from msprobe_core.locate.configuration import MAX_RANKS, configuration_of, value_in_words, values_in_words
from msprobe_core.locate.explain import LocatedFault
from msprobe_core.locate.result import CheckState, Degree, FaultKind
from msprobe_core.manifest.facts import Device, Library, Manifest, RunFacts
from msprobe_core.store.manifest_file import MANIFEST_FILE, write_manifest

NORM = LocatedFault(
    kind=FaultKind.EPSILON,
    entry="Module.layers.1.norm.RMSNorm.forward.0",
    ranks=(3,),
)


def manifest(**switches):
    framework = Library(name="torch", version="2.13.0")
    return Manifest(created="", run=RunFacts(framework=framework, device=Device(kind="cpu"), switches=switches))


def compare(target, golden):
    """Compare the switches only; a name in capitals changes no result."""
    own, other = target.run.switches, golden.run.switches
    found = [
        Difference(
            section=Section.SWITCHES,
            path=name,
            target=own.get(name),
            golden=other.get(name),
            severity=Severity.INFO if name.isupper() else Severity.ERROR,
            finding=noted(name),
            only_on=None if name in own and name in other else "target" if name in own else "golden",
        )
        for name in own | other
        if own.get(name) != other.get(name)
    ]
    section = SectionResult(section=Section.SWITCHES, compared=len(own), differences=found)
    return ConfigResult(target=Path(), golden=Path(), sections=[section])


def pairs_of(root, target, golden):
    """Write manifests of ranks, by rank; one that is `None` is left out."""
    found = []
    for rank, (own, other) in enumerate(zip(target, golden, strict=True)):
        sides = []
        for side, content in (("target", own), ("golden", other)):
            directory = root / side / "step0" / f"rank{rank}"
            directory.mkdir(parents=True)
            if content is not None:
                write_manifest(directory, content)
            sides.append(directory)
        found.append(UnitPair(f"rank{rank}", 0, rank, *sides))
    return found


def test_equal_manifests_hold(tmp_path):
    same = [manifest(tf32=False, cudnn=True)] * 2
    found = configuration_of(pairs_of(tmp_path, same, same), None, compare)
    assert found.check.state is CheckState.HOLDS
    assert found.check.detail.text == "4 settings of 2 ranks compared, none differs in what can change results"
    assert found.cause is None


def test_a_difference_that_changes_no_result_does_not_count(tmp_path):
    pairs = pairs_of(tmp_path, [manifest(PORT=1)], [manifest(PORT=2)])
    found = configuration_of(pairs, NORM, compare)
    assert found.check.state is CheckState.HOLDS
    assert [each.difference.path for each in found.explained] == ["PORT"]


def test_a_difference_of_all_ranks_is_one(tmp_path):
    pairs = pairs_of(tmp_path, [manifest(eps=1.0, tf32=True)] * 3, [manifest(eps=2.0, tf32=True)] * 3)
    found = configuration_of(pairs, None, compare)
    assert found.check.state is CheckState.DIFFERS
    (each,) = found.explained
    assert (each.difference.ranks, found.num_ranks) == ((), 3)
    assert values_in_words(each.difference).text == "eps: 1 / 2"
    assert found.check.detail.text == ("1 setting differs that can change results, first eps")


def test_the_state_of_a_random_generator_is_named_as_such():
    state = Difference(
        section=Section.RANDOM, path="python", target="a1", golden="b2", severity=Severity.WARNING, finding=noted("x")
    )  # fmt: skip
    assert values_in_words(state).text == "random state of python: a1 / b2"


def test_a_difference_of_one_rank_names_it(tmp_path):
    stale = [manifest(tf32=rank == 3) for rank in range(5)]
    found = configuration_of(pairs_of(tmp_path, stale, [manifest(tf32=False)] * 5), None, compare)
    (each,) = found.explained
    assert each.difference.ranks == [3]
    assert values_in_words(each.difference).text == "tf32: True / False, on rank 3 only"


def test_differences_are_in_the_order_of_what_they_explain(tmp_path):
    own = manifest(matmul_tf32=True, PORT=1, attention_eps=3)
    other = manifest(matmul_tf32=False, PORT=2, attention_eps=4)
    fault = LocatedFault(kind=FaultKind.COMPUTATION, entry="Functional.linear.0.forward")
    found = configuration_of(pairs_of(tmp_path, [own], [other]), fault, compare)
    degrees = [(each.difference.path, each.explanation.degree) for each in found.explained if each.explanation]
    assert degrees == [("matmul_tf32", Degree.YES), ("attention_eps", Degree.NO), ("PORT", Degree.NO)]
    assert found.cause is found.explained[0]


def test_dumps_without_manifests_are_unknown_and_say_how_to_get_one(tmp_path):
    found = configuration_of(pairs_of(tmp_path, [None], [None]), NORM, compare)
    assert found.check.state is CheckState.UNKNOWN
    assert '"manifest": true' in found.check.detail.text
    assert found.explained == ()


def test_a_manifest_of_one_side_only_is_unknown(tmp_path):
    found = configuration_of(pairs_of(tmp_path, [manifest()], [None]), NORM, compare)
    assert found.check.state is CheckState.UNKNOWN
    assert "with the golden" in found.check.detail.text


def test_a_rank_without_a_manifest_is_left_out(tmp_path):
    pairs = pairs_of(tmp_path, [None, manifest(a=1)], [manifest(a=1), manifest(a=1)])
    found = configuration_of(pairs, None, compare)
    assert found.check.state is CheckState.HOLDS
    assert found.check.detail.text.endswith("(other ranks, of 2, were not compared)")


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": 9}', b"[1]", b"\xff\xfe"])
def test_a_damaged_manifest_is_unknown_and_no_error(tmp_path, content):
    (pair,) = pairs_of(tmp_path, [manifest()], [manifest()])
    (pair.target / MANIFEST_FILE).write_bytes(content)
    found = configuration_of([pair], NORM, compare)
    assert found.check.state is CheckState.UNKNOWN
    assert MANIFEST_FILE in found.check.detail.text


def test_of_very_many_ranks_those_of_the_fault_are_compared(tmp_path):
    num = MAX_RANKS * 2
    odd = [manifest(a=rank == 3) for rank in range(num)]
    pairs = pairs_of(tmp_path, odd, [manifest(a=False)] * num)
    found = configuration_of(pairs, NORM, compare)
    assert found.num_ranks == MAX_RANKS
    (each,) = found.explained
    assert each.difference.ranks == [3]
    assert f"of {num}" in found.check.detail.text


def test_the_manifest_of_the_first_step_is_that_of_later_ones(tmp_path):
    for side, value in (("target", 1), ("golden", 2)):
        for step in (0, 5):
            directory = tmp_path / side / f"step{step}" / "rank0"
            directory.mkdir(parents=True)
            (directory / "dump.json").write_text('{"data": {}}')
        write_manifest(tmp_path / side / "step0" / "rank0", manifest(a=value))
    (later,) = [each for each in find_pairs(tmp_path / "target", tmp_path / "golden").pairs if each.step == 5]
    found = configuration_of([later], None, compare)
    assert found.check.state is CheckState.DIFFERS


@pytest.mark.parametrize(
    ("value", "shown"),
    [(10000.0, "10000"), (1e-5, "1e-05"), (True, "True"), (None, "None"), ("x" * 99, "x" * 79 + "…")],
)
def test_values_are_short(value, shown):
    assert value_in_words(value) == shown


@pytest.mark.parametrize(
    ("path", "values", "shown"),
    [("", ("evaluation", "training"), "model: evaluation / training"), ("args.0", (None, None), "2 of 2 samples")],
    ids=["outermost module", "rows of the data"],
)
def test_a_difference_without_path_or_values_says_what_differs(path, values, shown):
    difference = Difference(
        section=Section.MODEL, path=path, target=values[0], golden=values[1], severity=Severity.ERROR,
        finding=noted("2 of 2 samples"),
    )  # fmt: skip
    assert values_in_words(difference).text == shown
