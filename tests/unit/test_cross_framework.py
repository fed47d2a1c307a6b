"""MindSpore against PyTorch, from dumps of a small convolutional net that were recorded with both, at level mix.

``tests/data/frameworks`` holds them; ``examples/conv_pair`` is what made them. No framework is installed here.
"""

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from row_findings import has, of_all

from msprobe_core import names
from msprobe_core.cli.main import main
from msprobe_core.compare import compare_dumps
from msprobe_core.compare.mapping_files import read_matching
from msprobe_core.compare.result import Mode
from msprobe_core.compare.run import compare_run
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_findings import FINDINGS, findings_of
from msprobe_core.locate import FaultKind, LocateOptions, LocateVerdict, locate
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.plugins import registry
from msprobe_core.report.files import ResultFiles, TableOptions

DATA = Path(__file__).parents[1] / "data/frameworks"
NORM = "Cell.model.blocks.1.norm.BatchNorm2d"

pytestmark = pytest.mark.skipif(
    not {"mindspore", "pytorch"} <= set(registry().api_maps()), reason="the plugins of both frameworks have the maps"
)


class Recorded:
    """A copy of a recorded dump that a test changes."""

    def __init__(self, directory, name):
        self.directory = directory
        self.content = json.loads((DATA / name / "dump.json").read_text())
        self.parents = json.loads((DATA / name / "construct.json").read_text())

    @property
    def data(self):
        return self.content["data"]

    def rename(self, pattern, replacement):
        """Change names of entries."""
        renamed = {}
        for content in (self.data, self.parents):
            for entry in list(content):
                value = content.pop(entry)
                if content is self.parents and value is not None:
                    value = re.sub(pattern, replacement, value)
                renamed[re.sub(pattern, replacement, entry)] = value
            content |= renamed
            renamed = {}

    def write(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "dump.json").write_text(json.dumps(self.content))
        (self.directory / "construct.json").write_text(json.dumps(self.parents))
        return self.directory


@pytest.fixture
def pair(tmp_path):
    return Recorded(tmp_path / "target", "mindspore"), Recorded(tmp_path / "golden", "pytorch")


def compared(target, golden, **mapping):
    paths = [side.write() if isinstance(side, Recorded) else side for side in (target, golden)]
    (unit,) = compare_dumps(*paths, options=CompareOptions(matching=read_matching(**mapping))).units
    return unit


def row(unit, name):
    """Return the row of that name on either side."""
    return unit.rows.filter((pl.col("name_target") == name) | (pl.col("name_golden") == name)).to_dicts()[0]


@pytest.mark.parametrize("sides", [("mindspore", "pytorch"), ("pytorch", "mindspore")], ids="-".join)
def test_a_healthy_pair_agrees(sides):
    unit = compared(*(DATA / side for side in sides))
    assert unit.agrees
    assert unit.counts["pass"] == unit.num_rows == 237
    assert unit.first_fault is None
    assert unit.suggestions == []
    translated, *_ = (note for note in unit.notes if note.startswith(f"names of {sides[0]} and {sides[1]}"))
    assert "21 calls have a partner" in translated


def test_a_fault_is_named():
    unit = compared(DATA / "mindspore_fault", DATA / "pytorch")
    assert unit.first_fault.parent == f"{NORM}.forward.0"
    assert unit.first_fault.entry == "Primitive.bn_train.BatchNorm.1.forward"
    assert list(unit.first_fault.parts) == ["outputs"]


def test_pairs_of_apis_and_of_their_arguments():
    unit = compared(DATA / "mindspore", DATA / "pytorch")
    pairs = dict(unit.rows.select("name_target", "name_golden").drop_nulls().rows())
    both = unit.rows.filter(pl.col("match") == "both").select("entry", "entry_golden").unique().rows()
    assert {(names.stem_of(a), names.stem_of(b)) for a, b in both if not names.is_module(a)} == {
        ("Functional.cross_entropy", "Functional.cross_entropy"),
        ("Primitive.bn_train.BatchNorm", "Functional.batch_norm"),
        ("Primitive.max_pool.MaxPool", "Functional.max_pool2d"),
        ("Primitive.relu.ReLU", "Functional.relu"),
        ("Tensor.mean", "Tensor.mean"),
    }
    # Here scale and bias come before mean and variance; there after them, and by keyword.
    own, other = "Primitive.bn_train.BatchNorm.0.forward.input", "Functional.batch_norm.0.forward.input"
    places = {0: "0", 1: "weight", 2: "bias", 3: "1", 4: "2"}
    assert {f"{own}.{i}": f"{other}.{j}" for i, j in places.items()}.items() <= pairs.items()


def test_a_call_of_the_model_is_none_of_the_optimizers(pair):
    """At level L1, without nesting: what has a backward on one side alone is another call."""
    for side in pair:
        for entry in [name for name in side.data if names.is_module(name)]:
            del side.data[entry]
        side.parents.clear()
    vector = {
        "type": "torch.Tensor",
        "dtype": "float32",
        "shape": [12],
        "requires_grad": True,
        "num_nan": 0,
        "num_inf": 0,
    }
    vector |= {"Max": 1.0, "Min": -1.0, "Mean": 0.1, "Norm": 2.0}
    for number in range(100, 108):
        add = {"input_args": [vector, vector], "input_kwargs": {}, "output": [vector]}
        back = {"input": [vector], "output": [vector, vector]}
        pair[0].content["data"] = {f"Tensor.__add__.{number}.forward": add} | pair[0].data
        pair[0].content["data"] |= {f"Tensor.__add__.{number}.backward": back}
        pair[1].content["data"] |= {f"Tensor.add_.{number}.forward": add}  # as SGD ends a step
    unit = compared(*pair)
    both = unit.rows.filter(pl.col("match") == "both").select("entry", "entry_golden").unique().rows()
    assert ("Primitive.relu.ReLU.0.forward", "Functional.relu.0.forward") in both
    assert not [each for each in both if "add" in each[0]]


def test_what_may_differ_without_a_fault():
    unit = compared(DATA / "mindspore", DATA / "pytorch")
    found = of_all(unit.rows)
    assert has(found, RowCode.EXCUSED_BUFFER, side="target")
    assert has(found, RowCode.EXCUSED_ARGUMENT, side="golden")
    assert has(found, RowCode.EXCUSED_RESULT, side="target")
    assert has(found, RowCode.EXCUSED_AROUND)
    assert has(found, RowCode.EXCUSED_INSIDE, entry="Cell.model.blocks.0.conv.Conv2d.forward.0")


@pytest.mark.parametrize(("size", "agrees"), [(0.0, True), (1e-9, False)], ids=["of zeros", "of something"])
def test_a_gradient_that_one_side_lacks_is_excused_if_it_is_zero(pair, size, agrees):
    """MindSpore has zeros for a parameter that nothing has used, PyTorch nothing."""
    del pair[1].data["Module.head.Linear.parameters_grad.0"]
    own = pair[0].data["Cell.model.head.Dense.parameters_grad.0"]
    for value in (own["weight"], own["bias"]):
        value[0] |= {"Max": size, "Min": 0.0, "Mean": 0.0, "Norm": size}
    assert compared(*pair).agrees == agrees
    found = locate(*(side.write() for side in pair), LocateOptions(compare=CompareOptions(noise=NoiseModel())))
    assert (found.verdict is LocateVerdict.AGREE) == agrees


def test_a_gradient_of_a_parameter_is_never_excused(pair):
    del pair[0].data["Cell.model.head.Dense.parameters_grad.0"]["weight"]
    unit = compared(*pair)
    assert not unit.agrees
    assert row(unit, "Module.head.Linear.parameters_grad.0.weight")["verdict"] == "unmatched"


def test_only_one_framework_may_compute_a_gradient_of_an_input(pair):
    pair[0].data["Cell.model.blocks.0.conv.Conv2d.backward.0"]["output"] = [None]
    golden = pair[1].data["Module.blocks.0.conv.Conv2d.backward.0"]
    golden["output"] = golden["input"]
    unit = compared(*pair)
    found = row(unit, "Module.blocks.0.conv.Conv2d.backward.0.output.0")
    assert found["verdict"] == "pass"
    assert findings_of(found[FINDINGS]) == [Finding(RowCode.EXCUSED_GRADIENT, Level.NOTE, {"side": "golden"})]
    assert any(note.startswith("gradients with respect to inputs that only one side computes: 1") for
               note in unit.notes)  # fmt: skip


def test_inside_a_module_that_disagrees_a_lone_call_is_no_other_way(pair):
    output = pair[0].data["Cell.model.blocks.0.conv.Conv2d.forward.0"]["output"][0]
    output |= {name: output[name] * 1.5 for name in ("Max", "Min", "Norm")}
    unit = compared(*pair)
    assert row(unit, "Functional.conv2d.0.forward.output.0")["verdict"] == "unmatched"
    assert row(unit, "Functional.conv2d.1.forward.output.0")["verdict"] == "pass"
    assert unit.first_fault.entry == "Cell.model.blocks.0.conv.Conv2d.forward.0"


def test_a_module_that_one_side_lacks_is_unmatched(pair):
    for content in (pair[0].data, pair[0].parents):
        for entry in [name for name in content if ".blocks.1.relu." in name]:
            del content[entry]
    unit = compared(*pair)
    assert not unit.agrees
    assert unit.first_fault.entry == "Module.blocks.1.relu.ReLU.forward.0"


def put_inside(side, parent, stem):
    """Put a module inside of another, as forward and backward of one number."""
    for phase in ("forward", "backward"):
        enclosing = f"{parent}.{phase}.0"
        values = {name: side.data[enclosing][name] for name in ("input_args", "input_kwargs", "input", "output")
                  if name in side.data[enclosing]}  # fmt: skip
        content = {}
        for entry, value in side.data.items():
            if entry == enclosing:
                content[f"{stem}.{phase}.0"] = values
            content[entry] = value
        side.content["data"] = content
        side.parents[f"{stem}.{phase}.0"] = enclosing


@pytest.mark.parametrize("is_target", [True, False], ids=["of the target", "of the golden"])
def test_modules_that_a_layer_is_put_together_from_are_another_way(pair, is_target):
    """As recurrent layers are in one framework; a module that has lost what it had inside is none."""
    side, parent = (pair[0], "Cell.model.head.Dense") if is_target else (pair[1], "Module.head.Linear")
    put_inside(side, parent, f"{parent.rpartition('.')[0]}.inner.Inner")
    unit = compared(*pair)
    assert unit.agrees
    inside = pl.coalesce("name_target", "name_golden").str.ends_with("inner.Inner.forward.0.output.0")
    (found,) = unit.rows.filter(inside)[FINDINGS].to_list()
    assert findings_of(found) == [Finding(RowCode.EXCUSED_INSIDE, Level.NOTE, {"entry": f"{parent}.forward.0"})]
    other, there = (pair[1], "Module.head.Linear") if is_target else (pair[0], "Cell.model.head.Dense")
    put_inside(other, there, f"{there.rpartition('.')[0]}.another.Another")
    assert not compared(*pair).agrees


def test_a_named_tuple_is_its_elements(pair):
    relu = pair[1].data["Functional.relu.0.forward"]
    relu["output"] = [[relu["output"][0], relu["output"][0] | {"dtype": "torch.int64"}]]
    backward = pair[1].data["Functional.relu.0.backward"]
    backward["input"] = [[backward["input"][0], None]]
    unit = compared(*pair)
    assert unit.agrees
    assert row(unit, "Functional.relu.0.forward.output.0.0")["name_target"] == "Primitive.relu.ReLU.0.forward.output.0"
    assert row(unit, "Functional.relu.0.backward.input.0.0")["match"] == "both"
    (found,) = findings_of(row(unit, "Functional.relu.0.forward.output.0.1")[FINDINGS])
    assert found == Finding(RowCode.EXCUSED_RESULT, Level.NOTE, {"side": "golden"})


@pytest.mark.parametrize("sides", [("mindspore", "pytorch"), ("pytorch", "mindspore")], ids="-".join)
def test_additional_results_of_one_framework_are_not_faults_for_locate(sides):
    """MindSpore's normalisations return their statistics too."""
    found = locate(*(DATA / side for side in sides), LocateOptions(compare=CompareOptions(noise=NoiseModel())))
    assert found.verdict is LocateVerdict.AGREE


@pytest.mark.parametrize(
    ("own", "other", "verdict"),
    [
        ({"type": "int", "value": -1}, {"type": "int", "value": 12}, "pass"),
        ({"type": "int", "value": -1}, {"type": "int", "value": 8}, "error"),
        ({"type": "int", "value": 4}, {"type": "int", "value": 8}, "error"),
        ({"type": "bool", "value": True}, {"type": "int", "value": 1}, "pass"),
        ({"type": "mindspore.dtype", "value": "Float32"}, {"type": "torch.dtype", "value": "torch.float16"}, "pass"),
        (None, {"type": "int", "value": 8}, "pass"),
        ({"type": "float", "value": 1e-5}, {"type": "float", "value": 1e-2}, "error"),
        ({"type": "str", "value": "mean"}, {"type": "str", "value": "sum"}, "error"),
    ],
    ids=[
        "what is left",
        "no size of the result",
        "another size",
        "true is 1",
        "dtypes",
        "default",
        "another number",
        "another word",
    ],
)
def test_arguments(pair, own, other, verdict):
    pair[0].data["Tensor.mean.0.forward"]["input_kwargs"]["keepdim"] = own
    pair[1].data["Tensor.mean.0.forward"]["input_kwargs"]["keepdim"] = other
    unit = compared(*pair)
    assert row(unit, "Tensor.mean.0.forward.input.keepdim")["verdict"] == verdict


@pytest.mark.parametrize(
    ("own", "other", "verdict"),
    [(1, -3, "pass"), (-2, 2, "pass"), (1, -1, "error"), (-4, 3, "error"), (-1, 4, "error")],
)
def test_a_dimension_from_the_end_is_one_of_as_many_as_the_tensor_has(pair, own, other, verdict):
    for side, number in zip(pair, (own, other), strict=True):
        side.data["Tensor.mean.0.forward"]["input_kwargs"]["dim"] = {"type": "int", "value": number}
        side.data["Tensor.mean.0.forward"]["input_args"][1:] = []
    unit = compared(*pair)
    assert row(unit, "Tensor.mean.0.forward.input.dim")["verdict"] == verdict


def test_positional_and_keyword_arguments_are_one(pair):
    mean = pair[0].data["Tensor.mean.0.forward"]
    assert len(mean["input_args"]) == 2
    mean["input_kwargs"]["dim"] = mean["input_args"].pop()
    unit = compared(*pair)
    assert unit.agrees
    assert row(unit, "Tensor.mean.0.forward.input.dim.0")["name_golden"] == "Tensor.mean.0.forward.input.1.0"


def test_other_classes_are_paired_by_their_path_and_said(pair):
    pair[0].rename(r"\.head\.Dense", ".head.ColumnParallelLinear")
    unit = compared(*pair)
    assert unit.agrees
    assert "modules of different classes, paired by their path: 1; the first is" in " ".join(unit.notes)


def test_a_wrapper_on_either_side_is_found_out(pair):
    pair[1].rename(r"^Module\.(?=blocks|head)", "Module.module.")
    pair[1].rename(r"^Module\.ConvNet", "Module.module.ConvNet")
    unit = compared(*pair)
    assert unit.agrees
    assert {note.partition("'")[2].partition("'")[0] for note in unit.notes if "paths are without it" in note} == {
        "model", "module"
    }  # fmt: skip


def test_kinds_that_one_side_has_not_recorded_are_one_note(pair):
    for entry in [name for name in pair[0].data if not names.is_module(name)]:
        del pair[0].data[entry]
    unit = compared(*pair)
    assert unit.agrees
    (note,) = (note for note in unit.notes if note.startswith("what the target has recorded none of"))
    assert "inputs of APIs (" in note
    assert "gradients of outputs of APIs (" in note


def test_checksums_of_two_frameworks_are_not_compared(pair):
    for number, side in enumerate(pair):
        for record in side.data.values():
            for value in [*record.get("input_args", ()), *record.get("output", ())]:
                if isinstance(value, dict) and "Max" in value:
                    value["md5"] = f"{number:08x}"
    unit = compared(*pair)
    assert unit.mode is Mode.STATISTICS
    assert unit.agrees
    assert "two frameworks seldom agree bit for bit; statistics are compared instead of checksums" in unit.notes


def conv1d(prefix, shape):
    """Return a dump of one convolution along one dimension, and its gradient."""
    weight = {"dtype": "float32", "shape": shape, "Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 2.0, "type": "Tensor"}
    x = weight | {"shape": [2, 3, 8]}
    stem = f"{prefix}.conv.Conv1d"
    return {
        f"{stem}.forward.0": {"input_args": [x], "input_kwargs": {}, "output": [x], "parameters": {"weight": weight}},
        f"{stem}.parameters_grad.0": {"weight": [weight]},
    }


@pytest.mark.parametrize(("shape", "agrees"), [([3, 3, 1, 5], True), ([3, 3, 5, 1, 1], True), ([3, 5, 3], False)])
def test_weights_that_are_stored_with_a_dimension_more(pair, shape, agrees):
    for side, prefix, own in ((pair[0], "Cell", shape), (pair[1], "Module", [3, 3, 5])):
        side.content["data"], side.parents = conv1d(prefix, own), {}
    unit = compared(*pair)
    assert unit.agrees == agrees


# --- suggestions --------------------------------------------------------------------------------------------------


def test_suggested_modules_can_be_handed_back(pair, tmp_path):
    pair[0].rename(r"\.blocks\.1\.norm\.", ".blocks.1.batch_normalisation.")
    pair[0].rename(r"\.head\.Dense", ".classifier.Dense")
    target, golden = (side.write() for side in pair)
    result, files = compare_run(target, golden, ResultFiles(tmp_path / "out", TableOptions(stamp="1")))
    assert not result.agrees
    suggested = {each.target: each.candidates[0].golden for each in result.units[0].suggestions}
    assert suggested == {
        "model.blocks.1.batch_normalisation.BatchNorm2d": "blocks.1.norm.BatchNorm2d",
        "model.classifier.Dense": "head.Linear",
    }
    (path,) = files.suggestions
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines == ["model.blocks.1.batch_normalisation: blocks.1.norm", "model.classifier: head"]
    summary = json.loads(files.summary.read_text())["units"][0]["suggestions"]
    (candidate, *_) = summary[1]["golden"]
    assert (candidate["name"], candidate["reason"]) == (
        "head.Linear", "results and parameters have the same shapes and norms"
    )  # fmt: skip
    assert candidate["reason_finding"]["code"] == "compare.suggested.values"
    unit = compared(*pair, cell_mapping=path)
    assert unit.agrees
    assert not [note for note in unit.notes if "do not match" in note]


def test_suggested_apis_can_be_handed_back(pair, tmp_path):
    pair[0].rename(r"^Primitive\.relu\.ReLU\.", "Custom.my_relu.")
    pair[0].parents.clear()
    pair[1].parents.clear()
    target, golden = (side.write() for side in pair)
    result, files = compare_run(target, golden, ResultFiles(tmp_path / "out", TableOptions(stamp="1")))
    path = next(path for path in files.suggestions if path.name == "suggested_apis.yaml")
    assert "Custom.my_relu: Functional.relu  # results have the same shapes and norms\n" in path.read_text()
    assert "Custom.my_relu" in {each.target for each in result.units[0].suggestions}
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "my_relu" in line))
    unit = compared(*pair, api_mapping=path)
    assert row(unit, "Custom.my_relu.1.forward.output.0")["name_golden"] == "Functional.relu.1.forward.output.0"


def test_an_edited_file_of_suggestions_is_not_written_over(pair, tmp_path):
    pair[0].rename(r"\.head\.Dense", ".classifier.Dense")
    target, golden = (side.write() for side in pair)
    first, second = (
        compare_run(target, golden, ResultFiles(tmp_path / "out", TableOptions(stamp=stamp)))[1].suggestions
        for stamp in "12"
    )
    assert [path.name for path in (*first, *second)] == ["suggested_cells.yaml", "suggested_cells_2.yaml"]


def test_a_container_of_another_name_is_suggested_with_what_is_inside(pair, tmp_path):
    """Most paths agree without it, so that it was taken for what is around the model; a file of names needs it."""
    for content in (pair[0].data, pair[0].parents):
        for entry in [name for name in content if name.startswith("Cell.WithLoss.")]:
            del content[entry]
    pair[0].rename(r"^Cell\.model\.(blocks\.)?", lambda found: "Cell.encoder.layers." if found[1] else "Cell.")
    pair[0].rename(r"\.norm\.", ".batch_normalisation.")
    target, golden = (side.write() for side in pair)
    _, files = compare_run(target, golden, ResultFiles(tmp_path / "out", TableOptions(stamp="1")))
    path = next(path for path in files.suggestions if path.name == "suggested_cells.yaml")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert "encoder.layers: blocks" in lines
    unit = compared(*pair, cell_mapping=path)
    assert unit.agrees


# --- locate -------------------------------------------------------------------------------------------------------


def located(target, golden, **options):
    paths = [side.write() if isinstance(side, Recorded) else side for side in (target, golden)]
    return locate(*paths, LocateOptions(compare=CompareOptions(noise=NoiseModel()), **options))


@pytest.mark.parametrize("factor", [1 + 3e-5, 1.1], ids=["a little", "much"])
def test_what_no_library_explains_is_a_fault(pair, factor):
    """A sum of 27 products in float32 rounds to some 1e-6 at the most."""
    output = pair[0].data["Cell.model.blocks.0.conv.Conv2d.forward.0"]["output"][0]
    output |= {name: output[name] * factor for name in ("Max", "Min", "Norm")}
    first = located(*pair).suspects[0]
    assert first.entry == "Cell.model.blocks.0.conv.Conv2d.forward.0"
    assert first.only_on is None  # that either framework calls its own convolution there is no explanation


def test_a_wrong_weight_is_called_so_and_not_by_the_call_that_uses_it(pair):
    weight = pair[0].data["Cell.model.head.Dense.forward.0"]["parameters"]["weight"]
    weight |= {name: weight[name] * 1.01 for name in ("Max", "Min", "Norm")}
    output = pair[0].data["Cell.model.head.Dense.forward.0"]["output"][0]
    output |= {name: output[name] * 1.01 for name in ("Max", "Min", "Norm")}
    first = located(*pair).suspects[0]
    assert first.entry == "Cell.model.head.Dense.forward.0"
    assert first.kind is FaultKind.PARAMETER


def test_a_call_is_not_to_be_confirmed_between_frameworks():
    first = located(DATA / "mindspore_fault", DATA / "pytorch").suspects[0]
    assert first.advice.code is LocateCode.NEXT_RECORD_AND_COMPARE


def test_calls_without_partner_in_one_step_do_not_hide_errors_in_another(pair, tmp_path, capsys):
    for content in (pair[0].data, pair[0].parents):
        for entry in [name for name in content if ".blocks.1.relu." in name]:
            del content[entry]
    for step, target in (("step0", pair[0]), ("step1", DATA / "mindspore_fault")):
        for side, source in (("target", target), ("golden", pair[1])):
            place = tmp_path / "run" / side / step / "rank0"
            if isinstance(source, Recorded):
                source.directory = place
                source.write()
            else:
                shutil.copytree(source, place)
    result = compare_dumps(tmp_path / "run/target", tmp_path / "run/golden")
    unit, fault = result.first_fault
    assert unit.step == 1
    assert fault.entry == "Primitive.bn_train.BatchNorm.1.forward"
    with pytest.raises(SystemExit):
        main(["compare", "-tp", str(result.target), "-gp", str(result.golden), "-o", str(tmp_path / "out")])
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"DIFFERENT: first at step1/rank0: {fault.entry} in ")
