"""Jobs of several processes: nothing changes, and what the ranks say to each other is recorded."""

import math

import pytest
import torch
from jobs import LEVELS, STEPS, communicate, compare_with_bare, entries, run_job, run_pipeline
from torch_has import KINDS_OF_JOBS, WITHOUT_PIPELINES, pipelines_over_gloo

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module", params=KINDS_OF_JOBS)
def trained(request, tmp_path_factory):
    """Train under the probe and without, once for all tests; what each reports, and where its dumps are."""
    directory = tmp_path_factory.mktemp(request.param)
    return request.param, run_job(compare_with_bare, 2, directory, request.param), directory


def test_losses_gradients_and_weights_are_bit_for_bit_the_same(trained):
    _, results, _ = trained
    assert results == [{"itself": True, **dict.fromkeys(LEVELS, True)}] * 2


def test_each_rank_has_its_dump_with_every_module_and_parameter(trained):
    kind, _, directory = trained
    inside = "module." if kind == "ddp" else ""
    for rank in range(2):
        for step in range(STEPS):
            data = dict(entries(directory / "mix", step, rank))
            names = [f"{inside}{path}" for path in ("embed.Embedding", "blocks.1.up.Linear", "head.Linear")]
            for name in names:
                for micro_step in range(2):
                    assert f"Module.{name}.forward.{micro_step}" in data
                    assert f"Module.{name}.parameters_grad.{micro_step}" in data
                    assert f"Module.{name}.backward.{micro_step}" in data


def test_communication_of_sharded_models_is_recorded(trained):
    kind, _, directory = trained
    names = {name.split(".")[1] for name, _ in entries(directory / "mix", 1, 1) if name.startswith("Distributed.")}
    if kind == "ddp":
        assert not names  # it is not Python's
    elif kind == "fsdp2":
        assert {name.split("_")[0] for name in names} == {"all", "reduce"}  # gathers and reduce-scatters
    else:
        assert names == {"all_reduce"}


@pytest.mark.parametrize("trained", ["tp"], indirect=True)
def test_a_distributed_tensor_says_how_it_is_spread(trained):
    _, _, directory = trained
    data = dict(entries(directory / "L1", 0, 1))
    x, weight, bias = data["Functional.linear.1.forward"]["input_args"]
    assert (x["placements"], x["shape"], x["local_shape"]) == ([{"Shard": {"dim": 2}}], [2, 4, 16], [2, 4, 8])
    assert (weight["placements"], weight["local_shape"]) == ([{"Shard": {"dim": 1}}], [8, 8])
    assert bias["placements"] == [{"Replicate": {}}]
    assert bias["device_mesh"] == [0, 1]
    (output,) = data["Functional.linear.1.forward"]["output"]
    assert output["placements"] == [{"Partial": {"reduce_op": "sum"}}]


@pytest.mark.parametrize("trained", ["tp"], indirect=True)
def test_the_parts_of_a_sum_and_the_sum_are_both_recorded(trained):
    _, _, directory = trained
    data = [dict(entries(directory / "L1", 0, rank)) for rank in range(2)]
    means = [one["Distributed.all_reduce.0.forward"]["input_args"][0]["Mean"] for one in data]
    totals = [one["Distributed.all_reduce.0.forward"]["output"][0]["Mean"] for one in data]
    assert means[0] != means[1]
    assert totals[0] == totals[1]
    assert math.isclose(totals[0], sum(means), rel_tol=1e-5)


@pytest.fixture(scope="module")
def talked(tmp_path_factory):
    directory = tmp_path_factory.mktemp("talked")
    world = 3
    return run_job(communicate, world, directory), [dict(entries(directory / "run", 0, rank)) for rank in range(world)]


def test_communication_gives_what_it_gives_without_the_probe(talked):
    results, _ = talked
    for rank, seen in enumerate(results):
        before = (rank - 1) % 3
        assert seen == {
            "reduced": [6.0] * 3,
            "wait": True,
            "received": [18.0 + before] * 3,
            "gathered": [[18.0] * 3, [36.0] * 3, [54.0] * 3],
            "scattered": [54.0] * 3 if seen["scattered"] else None,  # gloo of this release has none
            "functional": [55.0] * 3,
            "direct": [6.0] * 3,
            "gradient": [6.0] * 2 if seen["gradient"] else None,  # no such collective in this release
            "raises": True,
            "is_put_back": True,
        }


@pytest.mark.parametrize(
    ("entry", "inputs", "outputs"),
    [
        ("all_reduce.0", lambda rank: [rank + 1.0], [6.0]),
        ("all_reduce.1", lambda rank: [6.0], [18.0]),
        ("isend.0", lambda rank: [18.0 + rank, (rank + 1) % 3], None),
        ("recv.0", lambda rank: [None, (rank - 1) % 3], lambda rank: [18.0 + (rank - 1) % 3, (rank - 1) % 3]),
        ("all_gather.0", lambda rank: [None, 18.0 * (rank + 1)], lambda rank: [[18.0, 36.0, 54.0], 18.0 * (rank + 1)]),
        ("all_gather_into_tensor.0", lambda rank: [None, 18.0], [18.0, 18.0]),
        ("reduce_scatter_tensor.0", lambda rank: [None, 18.0], [54.0, 18.0]),
        ("all_reduce.2", lambda rank: [1.0], None),
        ("all_reduce.3", lambda rank: [18.0, "sum", [0, 1, 2]], [54.0]),
    ],
)
def test_values_before_and_after_are_recorded(talked, entry, inputs, outputs):
    if "_tensor" in entry and not talked[0][0]["scattered"]:
        pytest.skip("gloo of this release has no such collective")
    for rank, data in enumerate(talked[1]):
        record = data[f"Distributed.{entry}.forward"]
        assert simple(record["input_args"]) == inputs(rank)
        if outputs is None:
            # Sent, or never waited for: nothing has come.
            assert not [one for one in simple(record.get("output", [])) if isinstance(one, float)]
        else:
            expected = outputs(rank) if callable(outputs) else outputs
            assert simple(record["output"])[: len(expected)] == expected


def test_what_communication_past_the_functions_has_written_is_read_anew(talked):
    for rank, data in enumerate(talked[1]):
        before, after = (simple(data[f"Torch.relu.{i}.forward"]["input_args"]) for i in range(2))
        assert (before, after) == ([rank + 1.0], [6.0])


def test_the_group_is_recorded_also_where_it_is_the_default(talked):
    for data in talked[1]:
        group = data["Distributed.all_reduce.0.forward"]["input_kwargs"]["group"]
        assert (group["type"], group["group_ranks"]) == ("torch.ProcessGroup", [0, 1, 2])


def test_a_batch_of_sends_and_receives_is_one_call(talked):
    for rank, data in enumerate(talked[1]):
        (operations,) = data["Distributed.batch_isend_irecv.0.forward"]["input_args"]
        assert [one["op"] for one in operations] == ["isend", "irecv"]
        assert [one["peer"] for one in operations] == [(rank + 1) % 3, (rank - 1) % 3]
        assert operations[1]["tensor"] is None
        (operations,) = data["Distributed.batch_isend_irecv.0.forward"]["output"]
        assert operations[0]["tensor"] is None
        assert operations[1]["tensor"]["Max"] == 18.0


def test_gradients_of_functional_collectives_are_recorded(talked):
    if not talked[0][0]["gradient"]:
        pytest.skip("functional collectives of this release have no gradients")
    for data in talked[1]:
        names = [name for name in data if name.startswith("Distributed.") and name.endswith("backward")]
        assert len(names) == 1
        (output, *_) = simple(data[names[0]]["output"])
        assert output == 6.0


def test_objects_and_barriers_leave_no_entries(talked):
    for data in talked[1]:
        names = {name.split(".")[1] for name in data if name.startswith("Distributed.")}
        assert not names & {"barrier", "all_gather_object"}
        # all_gather: the one of tensors alone, not the two by which objects travel.
        assert "Distributed.all_gather.1.forward" not in data
        assert not [name for name in data if "ByteTensor" in name]


def test_a_call_that_raises_is_closed_and_the_next_is_recorded(talked):
    for data in talked[1]:
        assert simple(data["Distributed.all_reduce.5.forward"]["output"]) == [54.0]


@pytest.mark.slow
def test_pipeline_stages_send_and_receive(tmp_path):
    if not pipelines_over_gloo():
        pytest.skip(WITHOUT_PIPELINES)
    results = run_job(run_pipeline, 2, tmp_path)
    assert results == [dict.fromkeys(LEVELS, True)] * 2
    sent = [record for name, record in entries(tmp_path / "mix", 0, 0) if "batch_isend_irecv" in name]
    assert sent
    values = [one for record in sent for one in simple(record["input_args"]) for one in one]
    operations = [one for record in sent for one in record["input_args"][0]]
    assert {(one["op"], one["peer"]) for one in operations} == {("isend", 1), ("irecv", 1)}
    assert len(values) == len(operations)
    names = [name for name, _ in entries(tmp_path / "mix", 0, 0) if name.startswith("Module.up.Linear.backward")]
    assert len(names) == 2  # micro-batches


def simple(value):
    """Return a value as plain Python: of a tensor its maximum, of a group its ranks."""
    if isinstance(value, list):
        return [simple(item) for item in value]
    if value is None:
        return None
    if "Max" in value:
        return value["Max"]
    return value.get("value", value.get("group_ranks"))
