"""Files that the established monitor has written: read, held against each other, and shown on a page."""

from __future__ import annotations

import math
import shutil
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from dumps import tensor, write_dump
from wording import worded_samples

from msprobe_core.cli.export import export
from msprobe_core.cli.view import view as command
from msprobe_core.compare.pairs import Chosen
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding
from msprobe_core.monitoring.divergence import first_divergence, first_non_finite
from msprobe_core.monitoring.files import find_monitored, is_monitored, read_monitored
from msprobe_core.monitoring.monitoring_codes import MonitoringCode
from msprobe_core.view import trends
from msprobe_core.view.build import ViewOptions, build
from msprobe_core.view.data import Kind, State
from msprobe_core.view.stored_graphs import StoredGraphs
from msprobe_core.view.trends import monitored_data
from msprobe_core.view.trends_codes import TrendsCode

DATA = Path(__file__).parents[1] / "data" / "monitor"
"""Written by mindstudio-probe 26.2.0 of a training of two ranks; in the target, what the second layer is given is half
as large again on rank 1 from step 2 on, and the loss of its last micro-batch is NaN."""

TARGET, GOLDEN, V2 = DATA / "target", DATA / "golden", DATA / "v2"
HEADER = "vpp_stage,name,step,norm,shape,dtype\n"


def write(place, text, name="grad_reduced_0-9.csv"):
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(text)
    return place


def values(run, **where):
    frame = run.frame
    for name, value in where.items():
        frame = frame.filter(frame[name] == value)
    return frame


# --- reading ------------------------------------------------------------------------------------------------------


def test_all_quantities_ranks_steps_and_micro_steps_are_there():
    run = read_monitored(GOLDEN)
    assert (run.ranks, run.steps, list(run.notes)) == ([0, 1], [0, 1, 2, 3], [])
    assert list(run.statistics) == ["norm", "max", "min", "mean", "nans"]
    assert set(run.frame["quantity"]) == {
        "actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq", "param_origin", "param_updated",
    }  # fmt: skip
    [row] = values(run, rank=1, quantity="actv", name="fc2.output", step=2, micro_step=1).to_dicts()
    [line] = [
        line for line in (next(GOLDEN.glob("*rank1*")) / "actv_2-3.csv").read_text().splitlines()
        if line.startswith("0,fc2.output,2,1,")
    ]  # fmt: skip
    assert [f"{row[name]:g}" for name in ("norm", "min", "max", "mean", "nans")] == [
        f"{float(cell):g}" for cell in line.split(",")[4:9]
    ]
    assert run.resolution == 1e-6


def test_what_was_absent_is_no_nan():
    run = read_monitored(GOLDEN)
    assert "nan,nan" in (next(GOLDEN.glob("*rank1*")) / "actv_grad_0-1.csv").read_text()  # the gradient of an input
    assert not values(run, quantity="actv_grad", name="fc1.input").height
    assert not run.frame["norm"].is_nan().any()


def test_version_two_is_read_with_the_same_words():
    run = read_monitored(V2)
    assert (run.ranks, run.steps) == ([0], [0, 1, 2, 3])
    assert {"actv", "actv_grad", "grad_reduced", "exp_avg", "param_updated"} <= set(run.frame["quantity"])
    assert run.frame["stage"].null_count() == run.frame.height  # -1 is a model that is one
    assert set(values(run, quantity="exp_avg")["name"]) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}


def test_steps_and_ranks_can_be_chosen():
    run = read_monitored(GOLDEN, steps=[1, 3], ranks=[1])
    assert (run.ranks, run.steps) == ([1], [1, 3])
    with pytest.raises(DumpError, match="none of the steps and ranks"):
        read_monitored(GOLDEN, ranks=[7])


def test_half_a_last_line_is_left_out_and_told(tmp_path):
    place = write(tmp_path / "a-rank0-x", HEADER + "0,w,0,1.5,[3],torch.float32\n0,w,1,1.2")
    run = read_monitored(tmp_path)
    assert run.frame["norm"].to_list() == [1.5]
    fields = {"file": "grad_reduced_0-9.csv", "directory": place.name}
    assert list(run.notes) == [Finding(MonitoringCode.CUT_LINE, fields=fields)]


def test_lines_that_do_not_fit_their_header_are_counted(tmp_path):
    """As those of communication, which have other columns than the header says."""
    text = (
        HEADER + "0,w,0,2.5,[3],torch.float32\nall_reduce,6.928203,0,3.0,nan,nan,15.588457,6.0,nan,nan\n0,w,one,1,,\n"
    )
    write(tmp_path / "a-rank0-x", text, "other_0-0.csv")
    run = read_monitored(tmp_path)
    assert run.frame["norm"].to_list() == [2.5]
    fields = {"file": "other_0-0.csv", "directory": "a-rank0-x", "count": 2}
    assert list(run.notes) == [Finding(MonitoringCode.ODD_LINES, fields=fields)]


VALUES = "1.25", "inf", "nan", "1.5e-3", ""


def test_a_word_where_numbers_are_changes_no_other_value(tmp_path):
    lines = [f"0,w,{step},{value},[3],torch.float32\n" for step, value in enumerate(VALUES)]
    write(tmp_path / "a-rank0-x", HEADER + "".join(lines))
    write(tmp_path / "b-rank0-x", HEADER + "".join([*lines, "0,w,9,off,[3],torch.float32\n"]))
    fast, careful = (read_monitored(each) for each in sorted(tmp_path.iterdir()))
    assert careful.frame.filter(pl.col("step") < 9).equals(fast.frame)
    assert careful.frame["norm"].to_list()[-1] is None
    assert fast.frame["norm"].to_list()[:2] == [1.25, math.inf]
    assert fast.resolution == careful.resolution == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1,2,3\n4,5,6\n", "name their columns"),
        (b"vpp_stage,name,step,norm,norm\n", "name their columns"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b'vpp_stage,name,step,norm\n0,"' + b"x" * 200_000 + b'",0,1\n', "comma-separated"),
    ],
    ids=["no header", "twice the same", "no text", "a field beyond all bounds"],
)
def test_other_files_are_errors_that_name_them(tmp_path, content, words):
    write(tmp_path / "a-rank0-x", "")
    (tmp_path / "a-rank0-x" / "actv_0-0.csv").write_bytes(content)
    with pytest.raises(DumpError, match=words) as caught:
        read_monitored(tmp_path)
    assert "actv_0-0.csv" in str(caught.value)


def test_a_directory_without_any_is_an_error(tmp_path):
    assert not is_monitored(tmp_path)
    with pytest.raises(DumpError, match="holds nothing of a monitor"):
        read_monitored(tmp_path)


def test_a_resumed_training_overwrites_its_steps(tmp_path):
    lines = [f"0,w,{step},{step}.0,[3],torch.float32\n" for step in range(4)]
    write(tmp_path / "Nov30_10-00-00-rank0-b", HEADER + "".join(lines))
    write(tmp_path / "Dec01_09-00-00-rank0-a", HEADER + "".join(line.replace(".0", ".5") for line in lines[2:]))
    run = read_monitored(tmp_path)
    assert run.frame.sort("step")["norm"].to_list() == [0.0, 1.0, 2.5, 3.5]
    assert run.notes[0].code is MonitoringCode.SEVERAL_DIRECTORIES


def test_one_rank_and_the_default_directory_are_found(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "run" / "monitor_output")
    assert find_monitored(tmp_path / "run") == tmp_path / "run" / "monitor_output"
    assert read_monitored(next(GOLDEN.glob("*rank1*"))).ranks == [1]


# --- where they part ----------------------------------------------------------------------------------------------


def test_the_first_value_that_departs_is_the_planted_one():
    found = first_divergence(read_monitored(TARGET), read_monitored(GOLDEN))
    assert (found.step, found.place.quantity, found.place.name, found.place.micro_step) == (2, "actv", "fc2.input", 0)
    assert (list(found.ranks), found.statistic) == ([1], "norm")
    assert found.relative == pytest.approx(0.5)
    assert found.target == pytest.approx(1.5 * found.golden)


def test_the_first_that_is_not_finite():
    found = first_non_finite(read_monitored(TARGET))
    assert (found.step, found.place.quantity, found.place.micro_step, list(found.ranks)) == (3, "actv_grad", 1, [1])
    assert math.isnan(found.target)
    assert first_non_finite(read_monitored(GOLDEN)) is None


def test_what_the_decimals_cannot_tell_is_no_difference(tmp_path):
    for name, norm in (("t", "0.000002"), ("g", "0.000001"), ("far", "0.000004")):
        write(tmp_path / name / "a-rank0-x", HEADER + f"0,w,0,{norm},[3],torch.float32\n")
    runs = {name: read_monitored(tmp_path / name) for name in ("t", "g", "far")}
    assert first_divergence(runs["t"], runs["g"]) is None
    assert first_divergence(runs["far"], runs["g"]) is not None


def test_nan_beside_a_number_departs_and_beside_nan_does_not(tmp_path):
    for name, norm in (("t", "nan"), ("g", "1.0")):
        write(tmp_path / name / "a-rank0-x", HEADER + f"0,w,0,{norm},[3],torch.float32\n")
    nan, one = read_monitored(tmp_path / "t"), read_monitored(tmp_path / "g")
    assert first_divergence(nan, one).relative == math.inf
    assert first_divergence(nan, nan) is None


def test_within_a_step_forward_comes_before_gradients_and_these_before_updates(tmp_path):
    place = tmp_path / "a-rank0-x"
    for name in ("param_updated", "grad_reduced", "actv"):
        write(place, HEADER + "0,w,0,nan,[3],torch.float32\n", f"{name}_0-0.csv")
    found = first_non_finite(read_monitored(tmp_path))
    assert [found.place.quantity, *(each.quantity for each in found.others)] == [
        "actv",
        "grad_reduced",
        "param_updated",
    ]


# --- the page -----------------------------------------------------------------------------------------------------


def test_two_monitors_make_a_page_of_trends(tmp_path):
    data = monitored_data(TARGET, GOLDEN, Chosen())
    assert (data.kind, data.verdict.state, data.units) == (Kind.MONITOR, State.FAULT, ())
    said = "The runs first diverge in step 2, rank 1 at fc2.input (actv): its norm is 50 % off."
    assert data.verdict.sentence.text == said
    first = data.trends[0]
    assert (first.name, first.slot, first.micro_step, first.statistic) == ("fc2.input", "actv", 0, "norm")
    assert [a == b for a, b in zip(first.target["1"], first.golden["1"], strict=True)] == [True, True, False, False]
    assert first.target["0"][:3] == first.golden["0"][:3]  # step 3 begins with parameters that step 2 has moved
    gradient = next(each for each in data.trends if (each.name, each.slot) == ("fc2.bias", "grad_unreduced"))
    assert gradient.target["1"][3] == "nan"
    assert len({(each.name, each.slot, each.micro_step, each.statistic) for each in data.trends}) == len(data.trends)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([TARGET], "Values stop being finite in step 3, micro step 1, rank 1 at (model).output (actv_grad)."),
        ([GOLDEN], "A single monitored training, with nothing to hold it against: 2 ranks, steps 0 to 3, 336 values"),
        ([GOLDEN, GOLDEN], "The monitored values agree within 1 %."),
        ([V2], "A single monitored training, with nothing to hold it against: 1 rank, steps 0 to 3, 120 values"),
        ([TARGET, GOLDEN, "--steps", "0,1"], "The monitored values agree within 1 %."),
    ],
    ids=["not finite", "one", "equal", "version 2", "some steps"],
)
def test_the_command_says_it(tmp_path, arguments, sentence):
    done = CliRunner().invoke(command, [*map(str, arguments), "-o", str(tmp_path / "p.html")])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(sentence)
    assert (tmp_path / "p.html").stat().st_size > 100_000


@pytest.mark.parametrize(
    ("golden", "words"), [(V2, "no value of a rank and step in common"), (DATA, "holds no files of a monitor")]
)
def test_what_has_nothing_in_common_is_refused(golden, words):
    with pytest.raises(CompareError, match=words):
        monitored_data(TARGET, golden, Chosen())


def test_a_monitor_beside_dumps_adds_its_trends(tmp_path):
    for name, source in (("target", TARGET), ("golden", GOLDEN)):
        shutil.copytree(source, tmp_path / name)
        data = {"Torch.relu.0.forward": {"input_args": [tensor([1.0, 2.0])], "output": [tensor([1.0, 2.0])]}}
        write_dump(tmp_path / name / "step0" / "rank0", data)
    with closing(StoredGraphs()) as graphs:
        data = build(tmp_path / "target", tmp_path / "golden", graphs, ViewOptions())
    assert data.kind is Kind.COMPARISON
    assert data.verdict.state is State.AGREE
    assert {each.origin for each in data.trends} == {"monitor"}
    assert any(note.code == "view.note.monitor" for note in data.notes)


@pytest.mark.parametrize("option", ["--model-explorer", "--perfetto", "--tb-database"])
def test_what_is_made_of_graphs_is_refused(tmp_path, option):
    with pytest.raises(CompareError, match="a monitor has written, which has no graphs"):
        CliRunner().invoke(export, [str(TARGET), "-o", str(tmp_path / "o"), option], catch_exceptions=False)
    assert not (tmp_path / "o").exists()


def test_tensorboard_gets_each_micro_step_by_itself(tmp_path):
    done = CliRunner().invoke(export, [str(TARGET), "-o", str(tmp_path), "--tensorboard"], catch_exceptions=False)
    assert done.exit_code == 0
    content = next((tmp_path / "tensorboard" / "target_rank1").iterdir()).read_bytes()
    for tag in (b"norm/fc2.input.actv.micro0", b"norm/fc2.input.actv.micro1", b"mean/fc2.bias.grad_reduced"):
        assert content.count(tag) == 4  # steps


def test_what_a_page_has_no_room_for_is_said(monkeypatch):
    monkeypatch.setattr(trends, "MAX_NUMBERS", 160)
    data = monitored_data(TARGET, GOLDEN, Chosen())
    assert {each.statistic for each in data.trends} == {"norm"}
    assert len(data.trends) == 10
    assert data.trends[0].name == "fc2.input"
    assert any(note.code == TrendsCode.NO_ROOM.value for note in data.notes)


# --- wording ----------------------------------------------------------------------------------------------------

FIELDS = {
    "place": Finding(TrendsCode.PLACE, fields={"parts": [Finding(TrendsCode.STEP, fields={"step": 2})]}),
    "value": "fc2.input (actv)", "statistic": "norm", "target": 1.5, "golden": 1.0, "percent": 50.0, "count": 1234,
    "limit": 1.0, "extent": Finding(TrendsCode.NO_VALUES), "ranks": [0, 1, 2, 3], "rank": 1, "first": 0, "last": 3,
    "step": 2, "micro_step": 1, "left_out": 1000, "total": 1200, "side": "target", "note": "a note",
    "parts": [Finding(TrendsCode.STEP, fields={"step": 2}), Finding(TrendsCode.RANK, fields={"rank": 1})],
    "file": "actv_0-0.csv", "directory": "rank_0", "rule": "AnomalyNan", "why": "No space", "steps": 20,
    "all_steps": 200,
}  # fmt: skip
SAMPLES = dict.fromkeys(TrendsCode, FIELDS) | {
    TrendsCode.EXTENT: {"ranks": 2, "steps": Finding(TrendsCode.STEPS, fields=FIELDS), "values": 1344},
    TrendsCode.ALARM: FIELDS | {"value": "nan"},
    TrendsCode.UNUSUAL: FIELDS | {"finding": Finding(TrendsCode.FIRST_OF, fields=FIELDS)},
}


def test_wording(wording_snapshot):
    pages = [monitored_data(target, golden, Chosen()) for target, golden in ((TARGET, None), (TARGET, GOLDEN))]
    said = ["\n".join(each.text for each in (page.verdict.sentence, *page.verdict.detail)) for page in pages]
    notes = worded_samples(MonitoringCode, dict.fromkeys(MonitoringCode, FIELDS))
    wording_snapshot.check("trends", *said, worded_samples(TrendsCode, SAMPLES), notes)
