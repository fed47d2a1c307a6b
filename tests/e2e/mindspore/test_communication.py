"""Communication between the ranks of a MindSpore job, recorded at level L1; one job for all tests."""

import pytest

pytest.importorskip("mindspore")

from mindspore_jobs import run_job
from recorded import Recorded

pytestmark = pytest.mark.slow

OWN = [[0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]]
SUM = [10.0, 12.0, 14.0, 16.0]


@pytest.fixture(scope="module", params=[0, 1], ids=["rank0", "rank1"])
def rank(request):
    return request.param


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("communication")
    run_job("mindspore_communication.py", directory, str(directory / "run"))
    return directory / "run"


@pytest.fixture(scope="module")
def dump(job, rank):
    return Recorded(job, rank=rank)


def test_what_is_written_in_place_is_recorded_before_and_after(dump, rank):
    entry = dump.data["MintDistributed.all_reduce.0.forward"]
    assert dump.tensor(entry["input_args"][0]).tolist() == OWN[rank]
    assert dump.tensor(entry["output"][0]).tolist() == SUM


def test_results_that_are_waited_for_are_those_after_the_wait(dump, rank):
    entry = dump.data["MintDistributed.all_reduce.1.forward"]
    assert entry["input_kwargs"]["async_op"] == {"type": "bool", "value": True}
    assert dump.tensor(entry["input_args"][0]).tolist() == OWN[rank]
    assert dump.tensor(entry["output"][0]).tolist() == SUM
    # It ended after what was computed meanwhile: nothing waited for it sooner.
    order = list(dump.data)
    assert order.index("Functional.relu.0.forward") < order.index("MintDistributed.all_reduce.1.forward")


def test_what_nobody_waits_for_has_no_results(dump, rank):
    entry = dump.data["MintDistributed.all_reduce.2.forward"]
    assert dump.tensor(entry["input_args"][0]).tolist() == OWN[rank]
    assert "output" not in entry


def test_memory_that_is_only_written_to_is_no_input(dump, rank):
    entry = dump.data["MintDistributed.all_gather.0.forward"]
    assert entry["input_args"][0] is None
    assert dump.tensor(entry["input_args"][1]).tolist() == OWN[rank]
    assert [dump.tensor(value).tolist() for value in entry["output"][0]] == OWN


def test_groups_are_recorded_with_their_ranks_and_peers_as_they_were_given(dump):
    entry = dump.data["MintDistributed.broadcast.0.forward"]
    group = entry["input_kwargs"]["group"]
    assert group["type"] == "mindspore.ProcessGroup"
    assert group["group_ranks"] == [0, 1]
    assert entry["input_kwargs"]["src"] == {"type": "int", "value": 1}
    assert dump.tensor(entry["output"][0]).tolist() == OWN[1]


def test_functions_that_return_what_they_receive(dump, rank):
    entry = dump.data["Distributed.broadcast.0.forward"]
    assert dump.tensor(entry["input_args"][0]).tolist() == OWN[rank]
    assert dump.tensor(entry["output"][0]).tolist() == OWN[0]


def test_primitives_of_cells_and_others(dump):
    assert dump.tensor(dump.data["Primitive.reduce.AllReduce.0.forward"]["output"][0]).tolist() == SUM
    backward = dump.data["Primitive.reduce.AllReduce.0.backward"]
    assert dump.tensor(backward["output"][0]).tolist() == [2.0] * 4
    assert dump.tensor(dump.data["Distributed.AllGather.0.forward"]["output"][0]).tolist() == OWN[0] + OWN[1]


def test_nothing_else_is_recorded(dump):
    """Neither what barriers and collectives of objects do inside, nor what collectives call."""
    names = {entry.rsplit(".", 2)[0] for entry in dump.data}
    communication = {"all_reduce", "all_gather", "broadcast"}
    others = {"Distributed.broadcast", "Distributed.AllGather", "Primitive.reduce.AllReduce", "Functional.relu"}
    assert names == {f"MintDistributed.{name}" for name in communication} | others | {"Tensor.sum"}
