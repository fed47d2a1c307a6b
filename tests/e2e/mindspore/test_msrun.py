"""A job of two processes, started by msrun: each writes its rank's directory, and comparing two jobs names the rank."""

import json

import pytest
from mindspore_jobs import run_job

from msprobe_core.cli import main
from msprobe_core.store.manifest_file import MANIFEST_FILE, read_manifest

pytestmark = pytest.mark.slow

FAULT = "Cell.layers.1.post_attention_layernorm.RMSNorm.forward.0"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record a healthy job and one with a fault on rank 1; return where."""
    directory = tmp_path_factory.mktemp("msrun")
    run_job("two_ranks.py", directory, str(directory), "L0")
    return directory


def entries(directory, step, rank):
    return json.loads((directory / f"step{step}" / f"rank{rank}" / "dump.json").read_text())["data"]


@pytest.mark.parametrize("run", ["golden", "target"])
def test_each_rank_has_a_directory_in_each_step(recorded, run):
    for step in range(2):
        assert {path.name for path in (recorded / run / f"step{step}").iterdir()} == {"rank0", "rank1"}
        zero, one = (entries(recorded / run, step, rank) for rank in range(2))
        assert set(zero) == set(one)
        assert {"Cell.lm_head.Dense.forward.0", "Cell.layers.0.mlp.MLP.backward.0", FAULT} < set(zero)
        assert zero["Cell.lm_head.Dense.forward.0"] != one["Cell.lm_head.Dense.forward.0"]  # each has its own batch


def test_each_rank_has_a_manifest_with_the_groups_of_the_job(recorded):
    for rank in range(2):
        manifest = read_manifest(recorded / "golden" / "step0" / f"rank{rank}" / MANIFEST_FILE)
        assert manifest.notes == ()
        assert (manifest.rank, manifest.world_size) == (rank, 2)
        assert manifest.run.groups[0].ranks == (0, 1)
        assert manifest.run.groups[0].backend == "mccl"
        assert manifest.data


def test_compare_names_the_rank_that_differs(recorded, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compare", "-tp", str(recorded / "target"), "-gp", str(recorded / "golden"), "-o", str(tmp_path)])
    shown = capsys.readouterr().out
    assert ended.value.code == 1
    assert shown.splitlines()[-1].startswith(f"DIFFERENT: first at step0/rank1: {FAULT} ")
    of_rank_0 = shown.partition("(step0/rank0, statistics):")[2].partition("Compared")[0]
    assert of_rank_0.endswith("No value differs.\n")
