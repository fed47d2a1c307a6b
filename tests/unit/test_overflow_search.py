"""``overflow_check``: who made NaN and Inf first, on all ranks, and what became of them."""

import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from dumps import tensor, write_dump
from rank_dumps import Rank, bad, group, infinite, make_ranks, value, write_ranks
from wording import worded_samples

from msprobe_core.cli.overflow import nan_analyze, overflow_check
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding
from msprobe_core.overflow import Kind, search
from msprobe_core.overflow.overflow_codes import OverflowCode
from msprobe_core.overflow.report import write_result

DATA = Path(__file__).parents[1] / "data"


def first_of(path):
    """Return rank, entry and kind of each first finding."""
    step = search(path).first
    return [] if step is None else [(f.rank, f.entry, f.kind) for f in step.first]


def searched(directory, *calls, **header):
    """Search the dump of one process, which ``calls`` write."""
    rank = Rank()
    for call in calls:
        call(rank)
    write_dump(directory, rank.data, parents=rank.parents, **header)
    return search(directory).steps[0]


def harms(harm):
    """Return code and fields of what became of an origin."""
    return [(each.code, each.fields) for each in harm.fields["clauses"]]


def masked(low=None):
    """Return the record of a mask's values: -Inf among finite ones."""
    return tensor(1.0, Max=1.0, Min="-Infinity", Mean="-Infinity", Norm="Infinity", num_nan=0, num_inf=3)


@pytest.mark.parametrize(
    "statistics",
    [{"Max": "nan"}, {"Min": "NaN"}, {"Max": "inf"}, {"Max": "+Infinity"}, {"Max": None, "Min": "-Infinity"},
     {"Min": " -inf "}, {"Max": 10**400}, {"Norm": "nan"}, {"Max": None, "Min": None, "Mean": "NaN"}],
    ids=str,
)  # fmt: skip
def test_every_spelling_of_what_is_not_finite(tmp_path, statistics):
    step = searched(tmp_path, lambda rank: rank.call("Torch.exp", tensor(), output=tensor(**statistics)))
    assert [found.entry for found in step.first] == ["Torch.exp.0.forward"]


@pytest.mark.parametrize("statistics", [{"Mean": "NaN"}, {"Mean": "inf"}, {"Norm": "inf"}, {"Max": "words"}], ids=str)
def test_sums_that_overflow_are_no_findings(tmp_path, statistics):
    step = searched(tmp_path, lambda rank: rank.call("Torch.exp", tensor(), output=tensor(**statistics)))
    assert not step.first


# --- what is known of the established tool ------------------------------------------------------------------------


def single_pre(number, rank):
    rank.call("Torch.div", output=bad() if number == 1 else None)
    rank.collective("all_reduce", given=bad() if number == 1 else None, got=bad())
    rank.call("Torch.exp", bad(), output=bad())


def after_allreduce(number, rank):
    rank.call("Torch.mul")
    rank.collective("all_reduce")
    rank.call("Torch.div", output=bad() if number == 1 else None)
    rank.collective("all_reduce", given=bad() if number == 1 else None, got=bad())
    rank.call("Torch.exp", bad(), output=bad())


def chain(number, rank):
    if number:
        rank.receive(number - 1, got=infinite())
        rank.call("Torch.mul", infinite(), output=infinite())
    else:
        rank.call("Torch.exp", output=infinite())
    if number < 2:
        rank.send(number + 1, infinite())


def clean(number, rank):
    rank.call("Torch.mul")
    rank.collective("all_reduce")


def two_groups(number, rank):
    members, last = (group(0, 1), 3) if number < 2 else (group(2, 3), 1)
    for layer in range(4):
        is_culprit = layer == last and number % 2 == 0
        was_bad = number >= 2 and layer > last
        rank.call("Torch.mul", bad() if was_bad else tensor(), output=bad() if is_culprit or was_bad else None)
        spread = layer >= last
        has = spread and (number % 2 == 0 or layer > last)
        rank.collective("all_reduce", members, given=bad() if has else None, got=bad() if spread else None)


def log_before_second_reduction(number, rank):
    """On rank 1 ``log`` makes NaN; rank 0 has fewer calls before the same reduction."""
    rank.collective("all_reduce")
    for _ in range(5 if number else 1):
        rank.call("Torch.mul")
    if number == 1:
        rank.call("Torch.log", output=bad())
    rank.collective("all_reduce", given=bad() if number == 1 else None, got=bad())
    rank.call("Torch.mul", bad(), output=bad())


@pytest.mark.parametrize(
    ("work", "world", "expected"),
    [
        (single_pre, 2, [(1, "Torch.div.0.forward", Kind.OPERATOR)]),
        (after_allreduce, 2, [(1, "Torch.div.0.forward", Kind.OPERATOR)]),
        (chain, 3, [(0, "Torch.exp.0.forward", Kind.OPERATOR)]),
        (clean, 2, []),
        (two_groups, 4, [(2, "Torch.mul.1.forward", Kind.OPERATOR), (0, "Torch.mul.3.forward", Kind.OPERATOR)]),
        (log_before_second_reduction, 2, [(1, "Torch.log.0.forward", Kind.OPERATOR)]),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_the_true_culprit_is_first(tmp_path, work, world, expected):
    directory = write_ranks(tmp_path / "step0", make_ranks(world, work))
    assert first_of(directory) == expected


def test_the_file_for_other_tools_has_the_first_nodes_of_each_rank(tmp_path):
    ranks = make_ranks(4, two_groups)
    ranks[2].parents["Torch.mul.1.forward"] = "Module.block.Block.forward.0"
    ranks[2].parents["Module.block.Block.forward.0"] = None
    ranks[2].stacks["Torch.mul.1.forward"] = ["File train.py, line 3, in step, \n x * y"]
    directory = write_ranks(tmp_path / "step0", ranks)
    anomalies, everything = write_result(search(directory), tmp_path / "output")
    assert anomalies.name.startswith("anomaly_analyze_")
    assert anomalies.name.removeprefix("anomaly_analyze_").removesuffix(".json").isdigit()
    (node,) = json.loads(anomalies.read_text()).pop("rank_2")
    assert json.loads(anomalies.read_text()).keys() == {"rank_2"}
    assert node == {
        "op_name": "Torch.mul.1.forward",
        "data_info": ranks[2].data["Torch.mul.1.forward"],
        "construct_info": ["Module.block.Block.forward.0"],
        "stack_info": ["File train.py, line 3, in step, \n x * y"],
    }
    content = json.loads(everything.read_text())
    assert (content["version"], content["verdict"]) == (1, "found")
    assert [finding["rank"] for finding in content["steps"][0]["first"]] == [2, 0]


def test_a_nested_output_is_found(tmp_path):
    nested = [{"last_hidden": tensor(), "past": [[tensor(), bad()]]}]
    found = searched(tmp_path, lambda rank: rank.call("Functional.attention", output=nested))
    assert [(f.entry, f.value) for f in found.first] == [
        ("Functional.attention.0.forward", "Functional.attention.0.forward.output.0.past.0.1")
    ]


@pytest.mark.parametrize("level", ["L0", "mix", "L1"])
def test_a_bad_weight_is_named_and_the_step_before_is_next(tmp_path, level):
    weight = infinite(shape=[4, 8], num_nan=0, num_inf=1)
    for step in (3, 4):
        rank = Rank()
        module = "Module.layers.1.fc1.Linear.forward.0"
        given, got = (weight, bad()) if step == 4 else (tensor(shape=[4, 8]), tensor())
        if level != "L0":
            rank.call("Functional.linear", tensor(), given, output=got, parent=module if level == "mix" else None)
        if level != "L1":
            rank.module("layers.1.fc1.Linear", output=got, parameters={"weight": given})
        write_ranks(tmp_path / f"step{step}", {0: rank})
    result = search(tmp_path)
    assert result.steps[0].is_clean
    (finding,) = result.first.first
    assert finding.kind is Kind.WEIGHT
    expected = {"L1": "Functional.linear.0.forward.input.1"}.get(level, f"{module}.parameters.weight")
    assert finding.value == expected
    assert finding.command == f"msprobe overflow_check {tmp_path / 'step3'}"


# --- what is to blame ---------------------------------------------------------------------------------------------


def test_input_data_is_distinguished_from_values_made_between_calls(tmp_path):
    def data(rank):
        rank.call("Functional.linear", bad(num_nan=2, num_inf=0), output=bad(), parent="Module.Net.forward.0")
        rank.module("Net", bad(num_nan=2, num_inf=0), output=bad())

    def between(rank):
        rank.call("Torch.relu")
        rank.call("Functional.linear", bad(), output=bad(), parent="Module.Net.forward.0")
        rank.module("Net", output=bad())

    (finding,) = searched(tmp_path / "data", data).first
    assert (finding.kind, finding.value) == (Kind.DATA, "Functional.linear.0.forward.input.0")
    (finding,) = searched(tmp_path / "between", between).first
    assert finding.kind is Kind.UNRECORDED


def test_a_backward_is_judged_by_its_gradient_and_by_what_its_forward_saved(tmp_path):
    def sqrt(rank):
        forward = rank.call("Torch.sqrt")
        rank.backward(forward, output=bad())

    def where(rank):
        """log(0) is left out by ``where``, and is NaN in the gradient all the same."""
        forward = rank.call("Torch.log", output=masked())
        rank.call("Torch.where", tensor(), masked(), output=tensor())
        rank.backward("Torch.where.0.forward")
        rank.backward(forward, output=bad())

    (finding,) = searched(tmp_path / "sqrt", sqrt).first
    assert (finding.entry, finding.kind) == ("Torch.sqrt.0.backward", Kind.BACKWARD)
    assert finding.reason.code is OverflowCode.BACKWARD
    (finding,) = searched(tmp_path / "where", where).first
    assert (finding.entry, finding.kind) == ("Torch.log.0.forward", Kind.OPERATOR)
    assert harms(finding.harm)[0] == (OverflowCode.BECOMES_NAN, {"place": "Torch.log.0.backward"})


def test_gradients_of_parameters_that_overflow_where_they_are_added(tmp_path):
    rank = Rank()
    rank.module("fc.Linear")
    rank.data["Module.fc.Linear.backward.0"] = {"input": [tensor()], "output": [tensor()]}
    rank.data["Module.fc.Linear.parameters_grad.0"] = {"weight": [infinite()]}
    write_dump(tmp_path, rank.data, parents=rank.parents)
    (finding,) = search(tmp_path).first.first
    assert (finding.entry, finding.value) == (
        "Module.fc.Linear.parameters_grad.0",
        "Module.fc.Linear.parameters_grad.0.weight",
    )


def test_a_module_is_not_blamed_for_a_call_inside_it(tmp_path):
    def work(rank):
        rank.call("Torch.exp", output=infinite(), parent="Module.act.Exp.forward.0")
        rank.module("act.Exp", output=infinite())
        rank.module("Net", output=infinite())
        rank.parents["Module.act.Exp.forward.0"] = "Module.Net.forward.0"

    (finding,) = searched(tmp_path, work).first
    assert finding.entry == "Torch.exp.0.forward"
    assert finding.parents == ["Module.act.Exp.forward.0", "Module.Net.forward.0"]


def test_a_sum_over_ranks_that_overflows_is_communication(tmp_path):
    def work(number, rank):
        rank.call("Torch.mul")
        rank.collective("all_reduce", given=tensor(60000.0, dtype="torch.float16"), got=infinite())
        rank.call("Torch.div", infinite(), output=infinite())

    directory = write_ranks(tmp_path, make_ranks(2, work))
    (finding,) = search(directory).first.first
    assert (finding.entry, finding.kind, finding.same_on) == (
        "Distributed.all_reduce.0.forward",
        Kind.COMMUNICATION,
        [1],
    )
    assert finding.reason.code is OverflowCode.COMMUNICATION
    assert finding.reason.fields["given"].fields == {"low": 60000.0, "high": 60000.0}


def test_what_comes_by_communication_names_who_sent_it(tmp_path):
    directory = write_ranks(tmp_path, make_ranks(3, log_before_second_reduction))
    (finding,) = search(directory).first.first
    reduced = "Distributed.all_reduce.1.forward"
    arrival = {"rank": 0, "entry": reduced, "sender": reduced, "from_rank": 1}
    assert (OverflowCode.ARRIVES, arrival) in harms(finding.harm)
    assert finding.ranks == [0, 1, 2]


def test_a_broadcast_is_blamed_on_its_source_only(tmp_path):
    def work(number, rank):
        rank.call("Torch.log", output=bad() if number != 2 else None)
        rank.collective("broadcast", given=bad() if number != 2 else None, got=bad(), src=value(1))
        rank.call("Torch.exp", bad(), output=bad())

    directory = write_ranks(tmp_path, make_ranks(3, work))
    (finding,) = search(directory).first.first
    assert (finding.rank, finding.entry, finding.same_on) == (0, "Torch.log.0.forward", [1])
    came = [fields for code, fields in harms(finding.harm) if code is OverflowCode.ARRIVES]
    assert came == []
    assert finding.ranks == [0]


def test_a_rank_without_a_dump_may_have_sent_it(tmp_path):
    ranks = make_ranks(3, chain)
    del ranks[0]
    found = search(write_ranks(tmp_path, ranks)).first
    (finding,) = found.first
    assert (finding.rank, finding.entry, finding.kind) == (1, "Distributed.recv.0.forward", Kind.UNRECORDED)
    assert finding.reason.code is OverflowCode.SENT_UNKNOWN_IN_PART
    assert finding.reason.fields["ranks"].fields == {"ranks": ["0"]}


def test_work_in_place_without_a_recorded_result_is_blamed(tmp_path):
    def work(rank):
        rank.call("Tensor.div_", tensor(shape=[5]), output=[])
        rank.call("Torch.relu", tensor(shape=[2]), output=tensor(shape=[2]))
        rank.call("Torch.mul", bad(shape=[5]), output=bad(shape=[5]))

    (finding,) = searched(tmp_path, work).first
    assert finding.entry == "Tensor.div_.0.forward"
    assert (finding.reason.code, finding.reason.fields) == (OverflowCode.IN_PLACE, {"first": "Torch.mul.0.forward"})


def test_a_value_changed_in_place_is_an_output(tmp_path):
    (finding,) = searched(tmp_path, lambda rank: rank.call("Tensor.div_", output=infinite())).first
    assert finding.entry == "Tensor.div_.0.forward"


# --- what is not --------------------------------------------------------------------------------------------------


def attention(rank, scores=None, out=None):
    rank.call("Torch.full", value(4), value(-math.inf) | {"value": "-Infinity"}, output=masked())
    rank.call("Tensor.masked_fill", scores or tensor(), tensor(dtype="torch.bool"), output=out or masked(),
              value={"type": "float", "value": "-Infinity"})  # fmt: skip
    rank.call("Functional.softmax", out or masked(), output=out or tensor())


def test_masks_are_not_blamed(tmp_path):
    found = searched(tmp_path, attention)
    assert found.is_clean
    assert found.num_harmless == 1
    again = (OverflowCode.FINITE_AGAIN, {"places": ["Functional.softmax.0.forward"]})
    assert again in harms(found.harmless[0].reason)


def test_a_mask_that_is_added_is_not_blamed(tmp_path):
    def work(rank):
        rank.call("Torch.log", output=masked())
        rank.call("Torch.add", tensor(), masked(), output=masked())
        rank.call("Functional.softmax", masked(), output=tensor())

    found = searched(tmp_path, work)
    assert found.is_clean
    assert [(note.entry, note.kind) for note in found.harmless] == [("Torch.log.0.forward", Kind.OPERATOR)]


def test_inf_that_becomes_an_integer_is_not_blamed(tmp_path):
    def work(rank):
        rank.call("Torch.log", output=masked())
        rank.call("Tensor.__mul__", masked(), value(2), output=masked())
        rank.call("Tensor.to", masked(), output=tensor(dtype="torch.int64"))

    assert searched(tmp_path, work).is_clean


def test_inf_that_does_not_leave_its_module_is_not_blamed(tmp_path):
    def work(rank):
        rank.call("Torch.log", output=masked(), parent="Module.bias.Buckets.forward.0")
        rank.module("bias.Buckets")

    assert searched(tmp_path, work).is_clean


def test_the_culprit_hidden_by_a_mask_is_found(tmp_path):
    def work(rank):
        attention(rank)
        rank.call("Torch.sqrt", output=bad())
        attention(rank, bad(), bad())

    (finding,) = searched(tmp_path, work).first
    assert finding.entry == "Torch.sqrt.0.forward"


def test_a_softmax_over_a_fully_masked_row_is_the_culprit(tmp_path):
    def work(rank):
        attention(rank)
        rank.call("Functional.softmax", masked(), output=bad())

    (finding,) = searched(tmp_path, work).first
    assert finding.entry == "Functional.softmax.1.forward"
    assert finding.reason.code is OverflowCode.INF_GIVEN
    assert finding.reason.fields["source"] == "Torch.full.0.forward.input.1"


def test_uninitialized_memory_is_exempt_until_it_is_used(tmp_path):
    def unused(rank):
        rank.call("Torch.empty", value(3), output=bad(num_nan=1, num_inf=0))
        rank.call("Tensor.fill_", bad(num_nan=1, num_inf=0), value(0), output=tensor())

    def used(rank):
        rank.call("Torch.empty", value(3), output=bad(num_nan=1, num_inf=0))
        rank.call("Torch.add", bad(num_nan=1, num_inf=0), output=bad(num_nan=1, num_inf=0))

    assert searched(tmp_path / "unused", unused).is_clean
    (finding,) = searched(tmp_path / "used", used).first
    assert (finding.entry, finding.kind) == ("Torch.empty.0.forward", Kind.UNINITIALISED)


def test_what_is_overwritten_counts_for_nothing(tmp_path):
    def work(rank):
        rank.call("Torch.empty", value(3), output=bad())
        rank.call("Tensor.copy_", bad(), tensor(), output=tensor())
        rank.call("Torch.exp", tensor(), output=infinite())

    (finding,) = searched(tmp_path, work).first
    assert finding.entry == "Torch.exp.0.forward"


def test_values_near_the_end_of_their_range_are_mentioned(tmp_path):
    def work(rank):
        rank.call("Torch.mul", output=tensor(60000.0, dtype="torch.float16"))
        rank.call("Torch.add", output=tensor(-65504.0, dtype="torch.float16"))  # a mask
        rank.call("Torch.add", output=tensor(60000.0))

    found = searched(tmp_path, work)
    assert found.is_clean
    assert [(note.value.entry, round(note.value.share, 3)) for note in found.near_end] == [
        ("Torch.mul.0.forward", 0.916)
    ]


# --- steps, formats, exits ----------------------------------------------------------------------------------------


def test_the_first_step_decides(tmp_path):
    for step, output in ((0, None), (10, bad()), (2, bad())):
        rank = Rank()
        rank.call("Torch.exp", output=output)
        write_ranks(tmp_path / f"step{step}", {0: rank})
    result = search(tmp_path)
    assert [step.step for step in result.steps] == [0, 2, 10]
    assert result.first.step == 2


@pytest.mark.parametrize("framework", ["pytorch", "mindspore", "mindspore_fault"])
def test_dumps_of_both_frameworks_are_read(framework):
    assert search(DATA / "frameworks" / framework).first is None


@pytest.mark.parametrize(
    "name",
    ["1.2.2_statistics", "8.3.3_statistics", "26.2.0_statistics", "26.2.0_two_ranks", "26.2.0_tensor", "26.2.0_L1",
     "26.2.0_L0_two_micro_batches", "26.2.0_md5"],
)  # fmt: skip
def test_dumps_of_mindstudio_probe_are_read(name):
    (step,) = search(DATA / "mindstudio_probe" / name / "step0").steps
    assert step.num_entries > 0


@pytest.mark.parametrize("name", ["26.2.0_xor", "26.2.0_structure"])
def test_dumps_without_values_cannot_be_judged(name, tmp_path):
    result = CliRunner().invoke(overflow_check, [str(DATA / "mindstudio_probe" / name), "-o", str(tmp_path)])
    assert isinstance(result.exception, DumpError)


def test_arrow_gives_the_same_result(tmp_path):
    pytest.importorskip("pyarrow")
    from msprobe_core.store.convert import convert

    write_ranks(tmp_path / "json" / "step0", make_ranks(4, two_groups))
    convert(tmp_path / "json", tmp_path / "arrow")
    assert first_of(tmp_path / "arrow") == first_of(tmp_path / "json")
    (one, _), (two, _) = (write_result(search(tmp_path / form), tmp_path / "out") for form in ("json", "arrow"))
    records = [json.loads(path.read_text())["rank_2"][0] for path in (one, two)]
    assert records[0]["op_name"] == records[1]["op_name"]
    assert records[0]["data_info"] == records[1]["data_info"]


@pytest.mark.parametrize("command", [overflow_check, nan_analyze], ids=lambda command: command.name)
@pytest.mark.parametrize("option", [[], ["-i"], ["--input_path"]], ids=str)
def test_the_command_prints_writes_and_returns(tmp_path, command, option):
    directory = write_ranks(tmp_path / "step0", make_ranks(2, log_before_second_reduction))
    result = CliRunner().invoke(command, [*option, str(directory), "-o", str(tmp_path / "out")], standalone_mode=False)
    assert result.return_value == 1
    assert "FOUND: rank 1: Torch.log.0.forward (operator)" in result.output
    content = json.loads((tmp_path / "out" / "overflow.json").read_text())["steps"][0]["first"][0]
    assert content["reason_finding"]["code"] == "overflow.operator"
    assert content["reason_finding"]["fields"]["given"]["fields"] == {"low": 1.0, "high": 1.0}
    assert f"  {content['reason']}\n" in result.output
    assert "msprobe control config.json set" in result.output
    assert sorted(path.name[:15] for path in (tmp_path / "out").iterdir()) == ["anomaly_analyze", "overflow.json"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "out").iterdir())


def test_a_clean_run_writes_no_anomalies(tmp_path):
    directory = write_ranks(tmp_path / "step0", make_ranks(2, clean))
    result = CliRunner().invoke(overflow_check, [str(directory), "-o", str(tmp_path / "out")], standalone_mode=False)
    assert result.return_value == 0
    assert "CLEAN" in result.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["overflow.json"]


def test_bad_input_is_a_sentence(tmp_path):
    with pytest.raises(CompareError, match="does not exist"):
        search(tmp_path / "nothing")
    with pytest.raises(DumpError, match="holds no dump"):
        search(tmp_path)
    result = CliRunner().invoke(overflow_check, [])
    assert "give one directory" in result.output
    directory = write_ranks(tmp_path / "step0", make_ranks(2, single_pre))
    (directory / "rank0" / "dump.json").write_text("[]")
    found = search(directory).first
    assert found.first[0].rank == 1
    assert any("rank0" in line.text for line in found.incomplete)


def test_a_dump_may_say_that_a_call_encloses_itself(tmp_path):
    rank = Rank()
    entry = rank.call("Torch.exp", output=bad())
    rank.parents[entry] = entry
    write_dump(tmp_path, rank.data, parents=rank.parents)
    assert first_of(tmp_path) == [(None, entry, Kind.OPERATOR)]


# --- wording ----------------------------------------------------------------------------------------------------

HOLDS = Finding(
    OverflowCode.NAN_AND_INF,
    fields={
        "nan": Finding(OverflowCode.NUM_NAN, fields={"count": 1234}),
        "inf": Finding(OverflowCode.INF),
    },
)
RANGE = {"low": -1.23456, "high": 60000.0}
GIVEN = Finding(OverflowCode.FINITE_BETWEEN, fields=RANGE)
FIRST = "Torch.exp.0.forward"
SAMPLES = {
    OverflowCode.IN_PLACE: {"first": FIRST},
    OverflowCode.SENT_UNKNOWN_IN_PART: {
        "holds": HOLDS, "ranks": Finding(OverflowCode.SEVERAL_RANKS, fields={"ranks": ["0-2", "5"]}),
    },
    OverflowCode.SENT_UNKNOWN: {"holds": HOLDS},
    OverflowCode.COMMUNICATION: {"given": GIVEN, "holds": HOLDS},
    OverflowCode.WEIGHT: {"value": f"{FIRST}.input.1", "holds": HOLDS},
    OverflowCode.DATA: {"value": f"{FIRST}.input.0", "holds": HOLDS},
    OverflowCode.UNINITIALISED: {"holds": HOLDS},
    OverflowCode.CONSTANT: {"value": f"{FIRST}.input.0", "holds": HOLDS},
    OverflowCode.UNRECORDED: {"value": f"{FIRST}.input.0", "holds": HOLDS},
    OverflowCode.SAVED_VALUE: {"holds": HOLDS},
    OverflowCode.INF_GIVEN: {"source": FIRST, "holds": HOLDS},
    OverflowCode.GRADIENTS_ADDED_UP: {"holds": HOLDS},
    OverflowCode.GIVEN_UNKNOWN: {"holds": HOLDS},
    OverflowCode.OPERATOR: {"given": GIVEN, "holds": HOLDS},
    OverflowCode.BACKWARD: {"given": Finding(OverflowCode.FINITE), "holds": HOLDS},
    OverflowCode.FINITE_BETWEEN: RANGE,
    OverflowCode.NUM_NAN: {"count": 1234},
    OverflowCode.NUM_INF: {"count": 1},
    OverflowCode.NAN_AND_INF: HOLDS.fields,
    OverflowCode.CALL_OF_RANK: {"entry": FIRST, "rank": 3},
    OverflowCode.ONE_RANK: {"ranks": ["3"]},
    OverflowCode.SEVERAL_RANKS: {"ranks": ["0-2", "5"]},
    OverflowCode.HARM: {
        "clauses": [Finding(OverflowCode.REACHES_GRADIENTS), Finding(OverflowCode.HANDED_ON, fields={"count": 2})]
    },
    OverflowCode.BECOMES_NAN: {"place": Finding(OverflowCode.CALL_OF_RANK, fields={"entry": FIRST, "rank": 3})},
    OverflowCode.ARRIVES: {"rank": 0, "entry": FIRST, "sender": FIRST, "from_rank": 3},
    OverflowCode.ARRIVES_ELSEWHERE: {"count": 1020},
    OverflowCode.FINITE_AGAIN: {"places": [FIRST, "Functional.softmax.0.forward"]},
    OverflowCode.HANDED_ON: {"count": 1234},
    OverflowCode.NOT_ALL_FOLLOWED: {"rank": 3, "count": 6000, "followed": 5000},
    OverflowCode.NO_VALUES: {"path": "rank0/dump.json", "task": "structure"},
    OverflowCode.NO_STATISTICS: {"path": "rank0/dump.json", "summary_mode": "md5"},
    OverflowCode.RANK_LACKING: {"step": 1, "rank": 3, "former": 0},
}  # fmt: skip


def test_wording(tmp_path, wording_snapshot):
    said = []
    for work in (clean, two_groups, log_before_second_reduction):
        directory = write_ranks(tmp_path / work.__name__ / "step0", make_ranks(4, work))
        output = CliRunner().invoke(overflow_check, [str(directory), "-o", str(tmp_path)], standalone_mode=False).output
        shown = re.sub(r"analyze_\d+", "analyze_TIME", output.replace(str(tmp_path), ""))
        said.append(f"--- {work.__name__}\n{shown}")
    wording_snapshot.check("overflow", *said, worded_samples(OverflowCode, SAMPLES))
