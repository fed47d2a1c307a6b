"""Runs that place tensors differently on ranks: compared as though one process had had them, and faults found."""

import json

import layout_jobs as jobs
import polars as pl
import pytest
import torch
from jobs import run_job
from layout_jobs import WORLD
from layout_pairs import compare, parts_of, verdicts
from torch_has import KINDS_OF_JOBS

from msprobe_core.compare.shards.merged import check_replicas
from msprobe_core.judge.columns import SKETCH_ERROR
from msprobe_core.store.reading import read_dump

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    """Runs with distributed tensors, and the same in one process."""
    directory = tmp_path_factory.mktemp("distributed")
    run_job(jobs.train_with_distributed_tensors, WORLD, directory)
    for mode in ("statistics", "sketch", "hash", "tensor"):
        jobs.train_alone(directory / "alone" / mode, jobs.network, mode)
    return directory


@pytest.mark.parametrize("kind", KINDS_OF_JOBS[1:])
@pytest.mark.parametrize("mode", ["statistics", "sketch", "tensor"])
def test_all_rows_agree_with_one_process(distributed, kind, mode):
    result = compare(distributed / kind / mode, distributed / "alone" / mode)
    assert verdicts(result) == {"pass": result.num_rows}
    assert result.num_rows > 160
    assert not result.replicas
    assert result.first_fault is None
    if mode == "sketch":
        tensors = result.rows.filter((pl.col("kind_target") == "tensor") & (pl.col("norm_golden") > 1e-6))
        # The parts' add up where they know their place; plain ones that are part of a tensor do not.
        assert tensors[SKETCH_ERROR].max() < 1e-5
        assert tensors[SKETCH_ERROR].null_count() < 20
    if mode == "tensor":
        tensors = result.rows.filter(result.rows["kind_target"] == "tensor")
        assert tensors["cosine"].null_count() <= tensors.filter(tensors["numel_golden"] <= 1).height


@pytest.mark.parametrize("kind", KINDS_OF_JOBS[1:])
def test_hashes_of_parts_add_up_to_that_of_the_whole(distributed, kind):
    def hashes(path):
        data = json.loads((path / "dump.json").read_text())["data"]
        return data[
            "Module.blocks.1.down.Linear.parameters_grad.0" if kind == "fsdp2" else "Functional.linear.1.forward"
        ]

    found = [hashes(path) for path in parts_of(distributed / kind / "hash")]
    leaves = [one["weight"][0] if kind == "fsdp2" else one["input_args"][1] for one in found]
    assert [leaf["local_offset"] for leaf in leaves] == ([[0, 0], [4, 0]] if kind == "fsdp2" else [[0, 0], [0, 8]])
    result = compare(distributed / kind / "hash", distributed / "alone" / "hash")
    parameters = result.rows.filter((pl.col("role") == "parameters") & (pl.col("kind_target") == "tensor"))
    assert parameters.height > 10
    assert (parameters["checksum_target"] == parameters["checksum_golden"]).all()
    assert parameters["checksum_target"].null_count() == 0
    if kind == "tp":  # gradients differ in rounding
        whole = hashes(parts_of(distributed / "alone" / "hash")[0])["input_args"][1]
        assert sum(int(leaf["md5"], 16) for leaf in leaves) % 2**64 == int(whole["md5"], 16)


@pytest.mark.parametrize("mode", ["statistics", "tensor"])
def test_a_fault_in_one_part_is_found_and_its_rank_named(distributed, mode):
    result = compare(distributed / "damaged" / mode, distributed / "alone" / mode)
    assert result.fault is not None
    assert result.fault.entry == "Module.blocks.1.up.Linear.forward.0"
    assert result.fault.parts == ["parameters", "outputs"]
    (told,) = [note for note in result.notes if "is held in parts" in note]
    assert told.startswith("Module.blocks.1.up.Linear.forward.0.parameters.weight")
    if mode == "tensor":
        assert "parts: rank 1 (8 to 15 of dimension 0) has the relative error 1." in told
        assert "rank 0 (0 to 7 of dimension 0) has the relative error 0" in told
    else:
        assert "is in that of rank 1 (8 to 15 of dimension 0)" in told


def test_a_replica_that_has_diverged_is_found_without_anything_to_compare_it_with(distributed):
    dumps = [read_dump(path) for path in parts_of(distributed / "diverged")]
    (found,) = check_replicas(dumps)
    assert found.name == "Module.module.blocks.0.down.Linear.forward.0.parameters.weight"
    assert (found.ranks, found.odd_ranks) == ((0, 1), (1,))
    assert 0 < found.error < 1e-3
    result = compare(distributed / "diverged", distributed / "alone" / "statistics")
    assert [one.odd_ranks for one in result.replicas] == [(1,)]
    assert any("rank 1 differs from rank 0" in note for note in result.notes)
    assert check_replicas([read_dump(path) for path in parts_of(distributed / "tp" / "statistics")]) == []
