"""Plain tensors and stages over ranks, as Megatron-LM has them, declared in a file and compared with one process."""

import layout_jobs as jobs
import pytest
import torch
from jobs import run_job
from layout_jobs import WORLD
from layout_pairs import compare, declared, parts_of, verdicts
from torch_has import WITHOUT_PIPELINES, pipelines_over_gloo

from msprobe_core.store.reading import read_dump

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Runs with plain tensors and with stages, and the same in one process."""
    directory = tmp_path_factory.mktemp("plain")
    run_job(jobs.train_with_plain_tensors, WORLD, directory)
    for mode in ("statistics", "sketch", "tensor"):
        jobs.train_alone(directory / "alone" / mode, jobs.parallel_network, mode)
    for mode in ("statistics", "tensor"):
        jobs.train_all_stages(directory / "all stages" / mode, mode)
    return directory


@pytest.mark.parametrize("mode", ["statistics", "sketch", "tensor"])
def test_plain_tensors_that_are_declared_agree_with_one_process(plain, tmp_path, mode):
    layouts = declared(tmp_path, "parallel: {target: {tp: 2}}")
    result = compare(plain / mode, plain / "alone" / mode, layouts)
    assert verdicts(result) == {"pass": result.num_rows}
    assert result.num_rows > 110
    assert not result.replicas


def test_a_parameter_that_all_ranks_should_have_alike_is_checked(plain, tmp_path):
    layouts = declared(tmp_path, "parallel: {target: {tp: 2}}")
    result = compare(plain / "diverged", plain / "alone" / "statistics", layouts)
    assert [(one.name, one.odd_ranks) for one in result.replicas] == [
        ("Module.norm.LayerNorm.forward.0.parameters.weight", (1,))
    ]


@pytest.mark.parametrize("mode", ["statistics", "tensor"])
def test_stages_are_one_model(plain, tmp_path, mode):
    if not pipelines_over_gloo():
        pytest.skip(WITHOUT_PIPELINES)
    layouts = declared(tmp_path, "parallel: {target: {pp: 2}}")
    result = compare(plain / "stages" / mode, plain / "all stages" / mode, layouts)
    assert verdicts(result) == {"pass": result.num_rows}
    assert result.num_rows > 400
    entries = result.entries["entry"].to_list()
    assert "Module.layers.3.mlp.down.Linear.parameters_grad.1" in entries
    # In the order in which one process makes the calls.
    golden = read_dump(parts_of(plain / "all stages" / mode)[0]).frame["entry"].unique(maintain_order=True).to_list()
    assert [name for name in entries if name in set(golden)] == [name for name in golden if name in set(entries)]
