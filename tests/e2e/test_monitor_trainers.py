"""The monitor under the trainers of PyTorch: gradients and moments of every rank, in trainings that stay the same."""

import csv
import json

import polars as pl
import pytest
import torch
from jobs import run_job
from monitored_trainers import alone, bare_and_watched

from msprobe_core.monitoring.files import read_monitored
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


def check_whole_training(directory, micro_batches=1):
    run, layouts = read_monitored(directory / "out"), layouts_of(directory / "out")
    whole = whole_norms(run, layouts)
    for step, expected in enumerate(alone(WORLD, micro_batches)):
        for rank in range(WORLD):
            agree(norms_of(run, "grad_unreduced", step, rank), expected["unreduced"][rank])
        of_step = whole.names.filter(pl.col("step") == step)
        for quantity, key in (("grad_reduced", "reduced"), ("param_updated", "updated")):
            agree(dict(of_step.filter(pl.col("quantity") == quantity).select("name", "norm").rows()), expected[key])
        (total,) = whole.gradient.filter(pl.col("step") == step)["norm"]
        assert total == pytest.approx(expected["gradient"], rel=2e-6)
        if step:
            before = alone(WORLD, micro_batches)[step - 1]["exp_avg"]
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


def test_gradients_of_shards_are_those_of_one_process_and_the_training_is_the_same(tmp_path):
    check_kinds([("fsdp2", 1)], tmp_path)


def test_gradients_in_buffers_and_copies_of_parameters_are_seen_as_by_stand_ins(tmp_path):
    check_kinds([("main-grad", 2), ("zero", 2)], tmp_path)
    layouts = layouts_of(tmp_path / "main-grad-2" / "out")
    assert [layout.trainers for layout in layouts.values()] == [("megatron",)] * WORLD
    cut = [parts.update for parts in layouts[0].parts.values() if not parts.update.is_empty]
    assert cut, "a parameter that is on both ranks"


@pytest.mark.slow
def test_so_are_those_of_other_trainers_with_micro_batches_and_hooks(tmp_path):
    check_kinds(RARER_KINDS, tmp_path)


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
