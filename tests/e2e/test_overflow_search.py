"""``overflow_check`` on what real programs record: the true culprit is named, and healthy ones stay silent."""

from functools import partial

import pytest
import torch
from jobs import run_job
from overflow_jobs import Net, record, run_all, train

from msprobe_core.findings import Finding
from msprobe_core.overflow import Kind, search
from msprobe_core.overflow.overflow_codes import OverflowCode

pytestmark = pytest.mark.filterwarnings("ignore")


def recorded(tmp_path, fault="", level="mix", steps=1, change=None, x=None):
    net = Net()
    for module in (net, net.attention):
        module.fault = fault
    x = torch.linspace(-1, 1, 64).reshape(2, 4, 8) if x is None else x

    before = None if change is None else partial(change, net)
    return search(record(tmp_path, net, lambda step: train(net, x), level, steps, before))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_masks_of_a_healthy_model_stay_silent(tmp_path, level):
    result = recorded(tmp_path, level=level)
    assert result.first is None
    if level != "L0":
        assert result.steps[0].num_harmless


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("fault", "entry", "kind"),
    [
        ("sqrt", "Torch.sqrt.0.forward", Kind.OPERATOR),
        ("whole row", "Torch.softmax.0.forward", Kind.OPERATOR),
        ("in place", "Tensor.log_.0.forward", Kind.OPERATOR),
        ("gradient", "Torch.sqrt.0.backward", Kind.BACKWARD),
    ],
)
def test_the_culprit_among_masks_is_named(tmp_path, fault, entry, kind, level):
    (finding,) = recorded(tmp_path, fault, level).first.first
    assert (finding.entry, finding.kind) == (entry, kind)
    assert "overflow_jobs.py" in finding.stack[0]


def test_a_model_of_modules_only_names_the_module(tmp_path):
    (finding,) = recorded(tmp_path, "sqrt", "L0").first.first
    assert finding.entry in {"Module.attention.out.Linear.forward.0", "Module.attention.Attention.forward.0"}


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
def test_a_weight_is_named_with_the_step_before(tmp_path, level, bad):
    def change(net, step):
        if step == 1:
            net.attention.out.weight.data[1, 2] = bad

    result = recorded(tmp_path, level=level, steps=2, change=change)
    (finding,) = result.first.first
    assert (result.first.step, finding.kind) == (1, Kind.WEIGHT)
    if level != "L1":
        assert finding.value == "Module.attention.out.Linear.forward.0.parameters.weight"
    assert finding.command == f"msprobe overflow_check {tmp_path / 'step0'}"


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_input_data_is_named(tmp_path, level):
    x = torch.ones(2, 4, 8)
    x[1, 2, 3] = float("nan")
    (finding,) = recorded(tmp_path, level=level, x=x).first.first
    assert finding.kind is Kind.DATA
    assert finding.reason.fields["holds"] == Finding(OverflowCode.NUM_NAN, fields={"count": 1})


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    run_job(run_all, 4, directory)
    return directory


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize(
    ("work", "first"),
    [
        ("run_logs", [(1, "Torch.log.0.forward")]),
        ("run_chain", [(0, "Torch.exp.0.forward")]),
        ("run_two_groups", [(2, "Torch.mul.3.forward"), (0, "Torch.mul.7.forward")]),
        ("run_asynchronous", [(1, "Torch.log.0.forward")]),
    ],
)
def test_the_rank_where_it_began_is_named(job, work, first):
    result = search(job / work / "run")
    assert [(finding.rank, finding.entry) for finding in result.first.first] == first
    assert result.first.notes == []
    if len(first) == 1:
        assert result.first.first[0].ranks == list(range(4))
