"""The check of reductions, on gradients whose sketches are known: what is named, and what rounding alone does."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from wording import worded_samples

from msprobe_core.cli import main
from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding
from msprobe_core.fingerprint import NumpyArrays, Sketcher
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.monitoring.reduction import check_reduction
from msprobe_core.monitoring.reduction_codes import ReductionCode
from msprobe_core.monitoring.reduction_steps import SketchedRun
from msprobe_core.monitoring.sketch_files import SketchedTensor, SketchFile, read_sketch_file, sketch_file_name

SKETCHER = Sketcher(NumpyArrays())
SHAPES = {"up.weight": (40, 30), "up.bias": (40,), "down.weight": (7, 40), "scale": (1,)}
UNREDUCED, REDUCED = Quantity.GRADIENT_UNREDUCED, Quantity.GRADIENT_REDUCED


def in_float32(own, factor):
    """Reduce as a ring of ranks does: a rounding for each addition."""
    total = own[0] * np.float32(1 / len(own))
    for each in own[1:]:
        total = total + each * np.float32(1 / len(own))
    return total * np.float32(factor)


def write_run(
    directory, world, steps=4, fault=None, *, clips=False, seed=0, alike=0.3, dtype="torch.float32", begin=None
):
    """Write the sketches of a training; ``fault(step, name, own, reduced, before)`` changes what ranks have."""
    rng = np.random.default_rng(seed)
    rows = {rank: [] for rank in range(world)}
    before = {}
    for step in range(steps):
        factor = rng.uniform(0.2, 0.9) if clips else 1.0
        for name, shape in SHAPES.items():
            shared = rng.normal(size=shape)
            own = [(alike * shared + rng.normal(size=shape)).astype(np.float32) for _ in range(world)]
            sent = [each.copy() for each in own]
            reduced = None if fault is None else fault(step, name, sent, before.get(name))
            reduced = [in_float32(sent, factor)] * world if reduced is None else reduced
            before[name] = reduced
            for rank in range(world):
                rows[rank] += [(step, UNREDUCED, name, own[rank]), (step, REDUCED, name, reduced[rank])]
    for rank, found in rows.items():
        write_rank(directory, rank, found, dtype=dtype, begin=begin)


def write_rank(directory, rank, rows, *, dtype="torch.float32", begin=None):
    tensors = {}
    for _, quantity, name, values in rows:
        tensors.setdefault(
            (quantity, name), SketchedTensor(quantity, 0, name, dtype, values.size, begin and begin(rank))
        )
    places = {key: place for place, key in enumerate(tensors)}
    content = SketchFile(
        rank=rank,
        tensors=list(tensors.values()),
        steps=[step for step, *_ in rows],
        places=[places[quantity, name] for _, quantity, name, _ in rows],
        norms=[float(np.linalg.norm(values)) for *_, values in rows],
        sketches=b"".join(SKETCHER.sketch(values).astype("<f4").tobytes() for *_, values in rows),
    )
    place = directory / f"Nov21_05-57-08-rank{rank}-95f81c46"
    place.mkdir(parents=True, exist_ok=True)
    path = place / sketch_file_name(rows[0][0], rows[-1][0])
    path.write_bytes(msgspec.msgpack.encode(content))
    return path


def at(step, name):
    """Return a decorator that plants a fault at one step and parameter."""
    return lambda fault: lambda now, each, own, before: fault(own, before) if (now, each) == (step, name) else None


def scaled(rank, scale):
    def fault(own, before):
        own[rank] *= np.float32(scale)

    return fault


def halves(own, before):
    half = len(own) // 2
    first, second = in_float32(own[:half], 1), in_float32(own[half:], 1)
    return [first] * half + [second] * (len(own) - half)


FAULTS = {
    "scaled": (scaled(1, 1.1), ReductionCode.SCALED, lambda world: (1,)),
    "scaled a little": (scaled(0, 1.0001), ReductionCode.SCALED, lambda world: (0,)),
    "missing": (scaled(1, 0), ReductionCode.MISSING, lambda world: (1,)),
    "twice": (scaled(0, 2), ReductionCode.TWICE, lambda world: (0,)),
    "not reduced": (lambda own, before: list(own), ReductionCode.NOT_REDUCED, lambda world: tuple(range(world))),
    "not on one rank": (
        lambda own, before: [own[0], *[in_float32(own, 1)] * (len(own) - 1)],
        ReductionCode.NOT_REDUCED,
        lambda world: (0,),
    ),
    "reduced twice": (
        lambda own, before: [in_float32(own, len(own))] * len(own),
        ReductionCode.REDUCED_TWICE,
        lambda world: tuple(range(world)),
    ),
    "stale": (lambda own, before: before, ReductionCode.STALE, lambda world: tuple(range(world))),
    "scaled afterwards": (
        lambda own, before: [*[in_float32(own, 1)] * (len(own) - 1), in_float32(own, 0.9)],
        ReductionCode.SCALED_AFTER,
        lambda world: (world - 1,),
    ),
    "other": (
        lambda own, before: [np.roll(in_float32(own, 1), 1)] * len(own),
        ReductionCode.UNEXPLAINED,
        lambda world: tuple(range(world)),
    ),
    "infinite": (
        lambda own, before: [np.full_like(own[0], np.inf), *[in_float32(own, 1)] * (len(own) - 1)],
        ReductionCode.BECAME_INFINITE,
        lambda world: (0,),
    ),
}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_nothing_else(name, world, tmp_path):
    fault, code, ranks = FAULTS[name]
    write_run(tmp_path, world, fault=at(2, "up.weight")(fault))
    result = check_reduction(SketchedRun(tmp_path))
    if name == "scaled afterwards" and world == 2:
        ranks = lambda _: (1,)  # noqa: E731
    assert [(each.step, each.parameter.name, each.explanation.code) for each in result.found] == [
        (2, "up.weight", code)
    ]
    assert result.found[0].explanation.ranks == ranks(world)
    assert result.num_judged == 16
    assert not result.unjudged


def test_ranks_that_reduce_among_others_are_named(tmp_path):
    write_run(tmp_path, 4, fault=at(1, "down.weight")(halves))
    (found,) = check_reduction(SketchedRun(tmp_path)).found
    assert found.explanation.code is ReductionCode.WRONG_GROUP
    assert found.explanation.fields["groups"] == ["[0, 1]", "[2, 3]"]
    # As groups of their own all is wrong but that one.
    result = check_reduction(SketchedRun(tmp_path, [[0, 1], [2, 3]]))
    assert (1, "down.weight") not in {(each.step, each.parameter.name) for each in result.found}


def test_several_ranks_are_named_with_their_factors(tmp_path):
    def fault(own, before):
        own[0] *= np.float32(0.5)
        own[3] *= np.float32(1.25)

    write_run(tmp_path, 4, fault=at(1, "up.weight")(fault))
    (found,) = check_reduction(SketchedRun(tmp_path)).found
    assert found.explanation.code is ReductionCode.SEVERAL
    assert found.explanation.fields["scales"] == ["0: 0.5", "3: 1.25"]


def test_a_factor_has_its_error(tmp_path):
    write_run(tmp_path, 2, fault=at(1, "up.weight")(scaled(1, 1.1)))
    (found,) = check_reduction(SketchedRun(tmp_path)).found
    assert found.explanation.scale == pytest.approx(1.1, abs=4 * found.explanation.error)
    assert found.explanation.error < 1e-6


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("clips", [False, True])
def test_rounding_alone_is_no_fault(world, clips, tmp_path):
    write_run(tmp_path, world, steps=12, clips=clips, seed=world)
    result = check_reduction(SketchedRun(tmp_path))
    assert (result.num_found, result.num_judged, result.unjudged.total()) == (0, 48, 0)
    assert result.factor <= 1 / world * (1 + 1e-6)
    assert 0 < result.power.median < result.power.most < 1e-4


def test_the_stated_power_holds(tmp_path):
    """What is off by twice what 19 of 20 gradients show is seen, a tenth of what half of them show is not."""
    write_run(tmp_path / "healthy", 2, seed=3)
    power = check_reduction(SketchedRun(tmp_path / "healthy")).power
    for factor, is_seen in ((1 + 2 * power.most, True), (1 + 0.1 * power.median, False)):
        write_run(tmp_path / str(is_seen), 2, seed=3, fault=at(1, "up.weight")(scaled(1, factor)))
        assert bool(check_reduction(SketchedRun(tmp_path / str(is_seen))).num_found) is is_seen


def test_equal_gradients_of_all_ranks_are_no_fault_and_leave_open_which_rank_is_wrong(tmp_path):
    def repeat(directory, scale):
        rng = np.random.default_rng(5)
        rows = {0: [], 1: []}
        for step in range(3):
            for name, shape in SHAPES.items():
                own = rng.normal(size=shape).astype(np.float32)
                reduced = in_float32([own, own * np.float32(scale)], 1)
                for rank in rows:
                    rows[rank] += [(step, UNREDUCED, name, own), (step, REDUCED, name, reduced)]
        for rank, found in rows.items():
            write_rank(directory, rank, found)

    repeat(tmp_path / "same", 1)
    assert not check_reduction(SketchedRun(tmp_path / "same")).num_found
    write_run(tmp_path / "parallel", 2, fault=at(1, "scale")(scaled(1, 3)))
    (found,) = check_reduction(SketchedRun(tmp_path / "parallel")).found
    assert found.explanation.code is ReductionCode.AMBIGUOUS
    assert {each.ranks for each in found.explanation.candidates} == {(0,), (1,), (0, 1)}


def test_a_gradient_of_one_element_is_explained_as_the_others_are(tmp_path):
    def fault(step, name, own, before):
        if step >= 2:
            own[1] *= np.float32(1.5)

    write_run(tmp_path, 2, fault=fault)
    result = check_reduction(SketchedRun(tmp_path))
    assert result.num_found == 8
    assert {each.explanation.ranks for each in result.found} == {(1,)}
    assert {each.parameter.name for each in result.found if each.is_inferred} == {"scale"}


def test_parts_of_sharded_gradients_are_not_compared(tmp_path):
    write_run(tmp_path, 2, begin=lambda rank: (20 * rank, 0))
    result = check_reduction(SketchedRun(tmp_path))
    assert (result.num_found, result.num_judged) == (0, 0)
    assert {code for code, _ in result.unjudged} == {ReductionCode.SHARDED}


def test_files_of_a_rank_that_are_missing_are_no_fault(tmp_path):
    write_run(tmp_path, 4)
    (gone,) = tmp_path.glob("*rank1*")
    for path in gone.iterdir():
        path.unlink()
    with pytest.raises(DumpError, match="no sketches of rank 1"):
        SketchedRun(tmp_path)
    with pytest.raises(DumpError, match="no sketches of gradients"):
        SketchedRun(gone)
    for path in next(tmp_path.glob("*rank3*")).iterdir():  # the last one is not known to be there
        path.unlink()
    (gone / "grad_sketches_0-3.msgpack").write_bytes(b"\x00")
    result = check_reduction(SketchedRun(tmp_path, [[0, 2]]))
    assert (result.num_found, {code for code, _ in result.unjudged}) == (0, {ReductionCode.ALL_UNEXPLAINED})


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        main(["monitor", "reduction-check", *map(str, arguments)])
    return end.value.code


def test_the_command_says_what_happened_and_what_to_do_next(tmp_path, capsys):
    write_run(tmp_path, 2, fault=at(2, "up.weight")(scaled(1, 1.1)))
    assert run(tmp_path, "-o", tmp_path / "result") == 1
    said = capsys.readouterr().out
    assert "WRONG: up.weight at step 2: rank 1 contributes 1.1 times its gradient" in said
    assert '"targets":{"up.weight":{}}' in said
    content = json.loads((tmp_path / "result" / "reduction_check.json").read_text())
    (found,) = content["found"]
    assert (found["step"], found["name"], found["ranks"]) == (2, "up.weight", [1])
    assert found["finding"]["code"] == "reduction.scaled"
    assert run(tmp_path, "-s", "[0,1]") == 0
    assert "RIGHT: 8 gradients" in capsys.readouterr().out
    assert run(tmp_path, "--group", "0,0") == 2
    assert run(tmp_path, "-s", "no") == 2


def test_what_cannot_be_judged_is_exit_status_two(tmp_path, capsys):
    write_run(tmp_path, 2, begin=lambda rank: (20 * rank, 0))
    assert run(tmp_path) == 2
    assert "not comparable: sharded" in capsys.readouterr().out


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: msgspec.msgpack.encode({"rank": "x"}),
        lambda content: msgspec.msgpack.encode({**msgspec.msgpack.decode(content), "places": [9] * 8}),
        lambda content: msgspec.msgpack.encode({**msgspec.msgpack.decode(content), "version": 7}),
        lambda content: msgspec.msgpack.encode({**msgspec.msgpack.decode(content), "sketches": b"x"}),
    ],
)
def test_a_damaged_file_is_a_sentence(damage, tmp_path):
    write_run(tmp_path, 2, steps=1)
    (path,) = tmp_path.glob("*rank1*/*")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DumpError, match=path.name):
        check_reduction(SketchedRun(tmp_path))
    with pytest.raises(DumpError):
        read_sketch_file(Path(tmp_path))


FIELDS = {
    "ranks": [1, 3], "scale": 1.1, "error": 3e-7, "scales": ["0: 0.5", "3: 1.25"], "groups": ["[0, 1]", "[2, 3]"],
    "step": 4, "share": 0.97, "count": 3, "first": "up.weight",
    "candidates": [Finding(ReductionCode.MISSING, fields={"ranks": [rank]}) for rank in (0, 1)],
}  # fmt: skip


def test_wording(wording_snapshot):
    wording_snapshot.check("reduction", worded_samples(ReductionCode, dict.fromkeys(ReductionCode, FIELDS)))
