"""The monitor under the trainers of PyTorch: gradients and moments of every rank, in trainings that stay the same."""

import csv
import json
import sys

import polars as pl
import pytest
import torch
from jobs import run_job
from monitored_trainers import alone, bare_and_watched, train

from msprobe_core.monitoring.files import read_monitored
from msprobe_core.monitoring.reduction import check_reduction
from msprobe_core.monitoring.reduction_codes import ReductionCode
from msprobe_core.monitoring.reduction_steps import SketchedRun
from msprobe_core.monitoring.whole_norms import layouts_of, whole_norms

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo"),
    pytest.mark.filterwarnings("ignore"),
]

WORLD = 2


def norms_of(run, quantity, step, rank=0):
    rows = run.frame.filter((pl.col("quantity") == quantity) & (pl.col("step") == step) & (pl.col("rank") == rank))
    return dict(rows.select("name", "norm").rows())


def agree(found, expected, tolerance=2e-6):
    assert found.keys() == expected.keys()
    # An expected norm that is 0 to rounding is that of a bias before a batch norm.
    assert found == pytest.approx(expected, rel=tolerance, abs=1e-7)


def check_whole_training(directory, micro_batches=1, world=WORLD):
    run, layouts = read_monitored(directory / "out"), layouts_of(directory / "out")
    whole = whole_norms(run, layouts)
    for step, expected in enumerate(alone(world, micro_batches)):
        for rank in range(world):
            agree(norms_of(run, "grad_unreduced", step, rank), expected["unreduced"][rank])
        of_step = whole.names.filter(pl.col("step") == step)
        for quantity, key in (("grad_reduced", "reduced"), ("param_updated", "updated")):
            found = dict(of_step.filter(pl.col("quantity") == quantity).select("name", "norm").rows())
            if world > WORLD and key == "updated":  # Adam makes a whole step of a gradient that is 0 to rounding
                found = {name: norm for name, norm in found.items() if name != "blocks.1.down.bias"}
                expected[key].pop("blocks.1.down.bias")
            agree(found, expected[key])
        (total,) = whole.gradient.filter(pl.col("step") == step)["norm"]
        assert total == pytest.approx(expected["gradient"], rel=2e-6)
        if step:
            before = alone(world, micro_batches)[step - 1]["exp_avg"]
            agree(dict(of_step.filter(pl.col("quantity") == "exp_avg").select("name", "norm").rows()), before)
    for path in (directory / "out").glob("*/coverage.json"):
        for quantity, seen in json.loads(path.read_text()).items():
            assert (seen["seen"], seen["missing"]) == (seen["expected"], []), (quantity, seen)
            assert seen["always"] == (0 if quantity.startswith("exp") else seen["expected"])


RARER_KINDS = [
    ("fsdp1", 1),
    ("fsdp1-whole", 1),
    ("ddp", 2),
    ("ddp-view", 2),
    ("ddp-hook", 1),
    ("fsdp2", 2),
    ("fsdp1", 2),
]


def check_kinds(kinds, directory):
    assert run_job(bare_and_watched, WORLD, directory, kinds) == [[True] * len(kinds)] * WORLD
    for kind, micro_batches in kinds:
        check_whole_training(directory / f"{kind}-{micro_batches}", micro_batches)


def reductions_of(directory):
    result = check_reduction(SketchedRun(directory / "out"))
    return result.num_found, result.reasons, result.num_judged


@pytest.mark.slow
def test_gradients_of_shards_are_those_of_one_process_and_the_training_is_the_same(tmp_path):
    check_kinds([("fsdp2", 1)], tmp_path)
    assert reductions_of(tmp_path / "fsdp2-1") == (0, [], 26)


@pytest.mark.slow
def test_gradients_in_buffers_and_copies_of_parameters_are_seen_as_by_stand_ins(tmp_path):
    check_kinds([("main-grad", 2), ("zero", 2)], tmp_path)
    layouts = layouts_of(tmp_path / "main-grad-2" / "out")
    assert [layout.trainers for layout in layouts.values()] == [("megatron",)] * WORLD
    cut = [parts.update for parts in layouts[0].parts.values() if not parts.update.is_empty]
    assert cut, "a parameter that is on both ranks"


@pytest.mark.slow
def test_so_are_those_of_other_trainers_with_micro_batches_and_hooks(tmp_path):
    check_kinds(RARER_KINDS, tmp_path)
    for kind in ("ddp-2", "fsdp2-2"):
        assert reductions_of(tmp_path / kind) == (0, [], 26)


def scaled_on_one_rank(rank, world, directory, kind):
    import torch.distributed.fsdp

    if rank == 1:
        module = next(each for name, each in sys.modules.items() if name.endswith("._fsdp_param_group"))
        reduce = module.foreach_reduce

        def scaled(parameters, gradients, *args, **kwargs):
            torch._foreach_mul_(gradients, 1.1)
            return reduce(parameters, gradients, *args, **kwargs)

        module.foreach_reduce = scaled
    directory.mkdir(exist_ok=True)
    train(rank, world, directory, kind, 2, is_watched=True)
    return True


@pytest.mark.slow
def test_a_rank_whose_slices_are_scaled_is_named_and_micro_batches_that_are_reduced_singly_add_up(tmp_path):
    run_job(scaled_on_one_rank, WORLD, tmp_path, "fsdp2-sync")
    found = check_reduction(SketchedRun(tmp_path / "out")).found
    named = [each.explanation for each in found if each.explanation.code is ReductionCode.SCALED]
    assert len(named) >= 20
    assert {(each.ranks, round(each.scale, 3)) for each in named} == {((1,), 1.1)}


@pytest.mark.slow
def test_slices_of_reduced_gradients_add_up_to_what_ranks_have_accumulated(tmp_path):
    kinds = [("hsdp", 1), ("fsdp2-tp", 1)]
    assert run_job(bare_and_watched, 4, tmp_path, kinds) == [[True, True]] * 4
    check_whole_training(tmp_path / "hsdp-1", world=4)
    assert reductions_of(tmp_path / "hsdp-1") == (0, [], 26)
    run, layouts = read_monitored(tmp_path / "fsdp2-tp-1" / "out"), layouts_of(tmp_path / "fsdp2-tp-1" / "out")
    for step, expected in enumerate(alone(2)):
        names = whole_norms(run, layouts).names
        of_step = names.filter((pl.col("step") == step) & (pl.col("quantity") == "grad_reduced"))
        agree(dict(of_step.select("name", "norm").rows()), expected["reduced"], tolerance=1e-5)
    assert layouts[1].parts["0:norm.weight"].ranks == (1, 3)
    assert reductions_of(tmp_path / "fsdp2-tp-1") == (0, [], 52)


@pytest.mark.slow
def test_norms_of_tensor_parallel_parameters_are_put_together(tmp_path):
    assert run_job(bare_and_watched, WORLD, tmp_path, [("tp", 1)]) == [[True]] * WORLD
    run, layouts = read_monitored(tmp_path / "tp-1" / "out"), layouts_of(tmp_path / "tp-1" / "out")
    whole = whole_norms(run, layouts)
    for step, expected in enumerate(alone(1)):
        of_step = whole.names.filter((pl.col("step") == step) & (pl.col("quantity") == "grad_reduced"))
        agree(dict(of_step.select("name", "norm").rows()), expected["reduced"], tolerance=1e-5)
        (total,) = whole.gradient.filter(pl.col("step") == step)["norm"]
        assert total == pytest.approx(expected["gradient"], rel=1e-5)
    assert layouts[0].trainers == ("dtensor",)
    # What a rank writes has the shape of what it has.
    (path,) = (tmp_path / "tp-1" / "out").glob("*rank1*/grad_reduced_0-0.csv")
    with path.open() as file:
        shapes = {row["name"]: row["shape"] for row in csv.DictReader(file)}
    assert (shapes["blocks.0.up.weight"], shapes["head.weight"]) == ("[8, 8]", "[11, 8]")


@pytest.mark.slow
def test_flat_parameters_are_seen_under_their_own_names(tmp_path):
    assert run_job(bare_and_watched, WORLD, tmp_path, [("fsdp1-flat", 1)]) == [[True]] * WORLD
    run = read_monitored(tmp_path / "fsdp1-flat-1" / "out")
    assert set(run.frame["name"]) == {"_flat_param", "blocks.0._flat_param", "blocks.1._flat_param"}
    expected = alone(WORLD)[0]["unreduced"][1]
    blocks = sum(norm**2 for name, norm in expected.items() if name.startswith("blocks.0.")) ** 0.5
    assert norms_of(run, "grad_unreduced", 0, rank=1)["blocks.0._flat_param"] == pytest.approx(blocks, rel=1e-5)
