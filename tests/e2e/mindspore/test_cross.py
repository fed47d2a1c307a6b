"""MindSpore against PyTorch: real dumps of both, of one model with equal weights, compared without either framework."""

import json
import subprocess
import sys

import pytest
from row_findings import of_row

from msprobe_core.judge.row_codes import RowCode

ms = pytest.importorskip("mindspore")
torch = pytest.importorskip("torch")

import conv_config  # noqa: E402
import llama_config  # noqa: E402
import mindspore_conv  # noqa: E402
import mindspore_llama  # noqa: E402
import msprobe.mindspore  # noqa: E402
import msprobe.pytorch  # noqa: E402
import torch_conv  # noqa: E402
import torch_llama  # noqa: E402
from llama_config import FAULTY_MODULE, Fault, LlamaConfig  # noqa: E402

from msprobe_core import names  # noqa: E402
from msprobe_core.compare import compare_dumps  # noqa: E402
from msprobe_core.compare.mapping_files import read_matching  # noqa: E402
from msprobe_core.compare.unit import CompareOptions  # noqa: E402

LEVELS = ("L0", "mix", "L1")
FP32_NOISE = 1e-5
"""Largest relative error of a row between the two frameworks; 3.5e-6 was measured, of a gradient."""


class Recorder:
    """Records a step of either framework, each kind once."""

    def __init__(self, directory):
        self._directory = directory
        self._done = {}

    def __call__(self, framework, model, level, **options):
        key = (framework, model, level, *options.items())
        if key not in self._done:
            path = self._directory / str(len(self._done))
            getattr(self, f"_{framework}_{model}")(path, level, **options)
            (self._done[key],) = (path / "step0").iterdir()
        return self._done[key]

    def _torch_llama(self, path, level):
        model = torch_llama.build(LlamaConfig())
        tokens, labels = (torch.from_numpy(array).long() for array in llama_config.batch(LlamaConfig()))
        record(msprobe.pytorch, path, level, model,
               lambda: torch_llama.loss_function(model(tokens), labels).backward())  # fmt: skip

    def _mindspore_llama(self, path, level, variant="nn", fault=None, wraps=False, mode="pynative"):
        mindspore_llama.set_mode(mode)
        model = mindspore_llama.build(LlamaConfig(), variant, fault)
        parameters, whole = model.trainable_params(), mindspore_llama.WithLoss(model)
        arrays = [ms.Tensor(array) for array in llama_config.batch(LlamaConfig())]
        step = ms.value_and_grad(whole, None, parameters)
        record(msprobe.mindspore, path, level, whole if wraps else model, lambda: step(*arrays))

    def _torch_conv(self, path, level):
        model = torch_conv.build(conv_config.ConvConfig())
        images, labels = (torch.from_numpy(array) for array in conv_config.batch(conv_config.ConvConfig()))
        record(msprobe.pytorch, path, level, model,
               lambda: torch_conv.loss_function(model(images), labels.long()).backward())  # fmt: skip

    def _mindspore_conv(self, path, level, has_fault=False):
        mindspore_llama.set_mode("pynative")
        model = mindspore_conv.WithLoss(mindspore_conv.build(conv_config.ConvConfig(), has_fault))
        arrays = [ms.Tensor(array) for array in conv_config.batch(conv_config.ConvConfig())]
        step = ms.value_and_grad(model, None, model.trainable_params())
        record(msprobe.mindspore, path, level, model, lambda: step(*arrays))


def record(plugin, path, level, model, function):
    debugger = plugin.PrecisionDebugger(dump_path=path, level=level)
    try:
        with debugger.start(model):
            function()
        debugger.step()
    finally:
        debugger.close()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return Recorder(tmp_path_factory.mktemp("cross"))


def compared(target, golden, **mapping):
    (unit,) = compare_dumps(target, golden, options=CompareOptions(matching=read_matching(**mapping))).units
    return unit


def is_module_row(rows):
    return rows["entry"].str.contains(r"^(Cell|Module)\.")


@pytest.mark.parametrize("turned", [False, True], ids=["MindSpore against PyTorch", "PyTorch against MindSpore"])
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("variant", mindspore_llama.VARIANTS)
def test_every_module_of_the_llamas_agrees(recorded, variant, level, turned):
    pair = recorded("mindspore", "llama", level, variant=variant), recorded("torch", "llama", level)
    unit = compared(*(pair[::-1] if turned else pair))
    assert unit.agrees
    assert unit.counts["warning"] == 0
    modules = unit.rows.filter(is_module_row(unit.rows))
    assert modules["match"].unique().to_list() == ["both"]
    assert modules.height == 168
    assert modules["judged_error"].max() < FP32_NOISE
    assert unit.rows["judged_error"].max() < FP32_NOISE
    frameworks = ("pytorch and mindspore" if turned else "mindspore and pytorch")  # fmt: skip
    assert unit.notes[0].startswith(f"names of {frameworks} are translated by the maps of their plugins: ")


def of_calls(unit, match):
    paired = set(unit.rows.filter(unit.rows["match"] == "both")["entry"])
    rows = unit.rows.filter((unit.rows["match"] == match) & ~unit.rows["entry"].is_in(list(paired)))
    lone = set(rows["entry_golden" if match == "only golden" else "entry"])
    return {names.stem_of(entry) for entry in lone if not names.is_module(entry)}


@pytest.mark.parametrize("level", ["mix", "L1"])
@pytest.mark.parametrize("variant", mindspore_llama.VARIANTS)
def test_what_is_written_otherwise_has_no_partner(recorded, variant, level):
    """The attention of the two is written in other ways; nothing is paired with what it is not."""
    unit = compared(recorded("mindspore", "llama", level, variant=variant), recorded("torch", "llama", level))
    assert unit.counts["error"] == 0
    assert unit.fault is None
    squares = {"nn": "Tensor.__mul__", "mint": "Mint.mul"}[variant]
    lookup = {"nn": "Primitive.gather.Gather", "mint": "Functional.gather"}[variant]
    matmul = {"nn": {"Primitive.matmul.MatMul"}, "mint": set()}[variant]
    linear = {"nn": {"Functional.linear"}, "mint": set()}[variant]
    assert of_calls(unit, "only target") == {squares, lookup} | matmul
    assert of_calls(unit, "only golden") == {"Functional.embedding", "Tensor.pow"} | linear
    pairs = unit.rows.filter((unit.rows["match"] == "both") & ~is_module_row(unit.rows))
    calls = pairs.select("entry", "entry_golden").unique().rows()
    paired = {(names.stem_of(own), names.stem_of(other)) for own, other in calls}
    own = {"nn": "Functional", "mint": "Mint"}[variant]
    assert {(f"{own}.matmul", "Torch.matmul"), (f"{own}.rsqrt", "Torch.rsqrt"),
            ("Functional.cross_entropy", "Functional.cross_entropy")} <= paired  # fmt: skip
    assert ("Functional.softmax" if variant == "nn" else "MintFunctional.softmax", "Torch.softmax") in paired
    assert pairs["judged_error"].max() < FP32_NOISE
    assert unit.agrees == (level == "mix")  # without modules nothing shows that the others do the same
    if level == "L1":
        assert unit.first_fault.only_on == "golden"


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value)
def test_a_planted_fault_is_named(recorded, fault, level):
    unit = compared(recorded("mindspore", "llama", level, fault=fault), recorded("torch", "llama", level))
    found = unit.first_fault
    module = next(entry for entry in (found.entry, found.parent) if names.is_module(entry))
    assert names.split_module(names.stem_of(module))[1] == FAULTY_MODULE[fault]
    # Of the rotary embedding the multiplication that turns the sign is a call of its own, which only modules hide.
    assert found.only_on == ("target" if (fault, level) == (Fault.ROPE, "mix") else None)
    assert found.is_culprit
    turned = compared(recorded("torch", "llama", level), recorded("mindspore", "llama", level, fault=fault))
    own = [entry for entry in (turned.first_fault.entry, turned.first_fault.parent) if names.is_module(entry)]
    assert FAULTY_MODULE[fault] in {names.split_module(names.stem_of(entry))[1] for entry in own}


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_conv_nets_agree(recorded, level):
    """With the loss around MindSpore's, and moving statistics that are parameters in one and buffers in the other."""
    unit = compared(recorded("mindspore", "conv", level), recorded("torch", "conv", level))
    assert unit.agrees
    assert "'model'; paths are without it" in unit.notes[0]
    (found,) = of_row(unit.rows, "Cell.model.blocks.0.norm.BatchNorm2d.forward.0.parameters.moving_mean")[1]
    assert (found.code, found.fields) == (RowCode.EXCUSED_BUFFER, {"side": "target"})
    pairs = dict(unit.rows.select("name_target", "name_golden").rows())
    assert pairs["Cell.model.blocks.0.norm.BatchNorm2d.parameters_grad.0.gamma"] == (
        "Module.blocks.0.norm.BatchNorm2d.parameters_grad.0.weight"
    )
    assert unit.rows["judged_error"].max() < FP32_NOISE


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_fault_of_the_conv_net_is_named(recorded, level):
    unit = compared(recorded("mindspore", "conv", level, has_fault=True), recorded("torch", "conv", level))
    path = f"Cell.model.{conv_config.FAULTY_MODULE}.BatchNorm2d.forward.0"
    assert path in (unit.first_fault.entry, unit.first_fault.parent)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [None, pytest.param(Fault.SCALE, marks=pytest.mark.nightly)], ids=["healthy", "scale"]
)  # fmt: skip
def test_static_graphs(recorded, fault, tmp_path, monkeypatch):
    """The rows are those of the dynamic graph, but for gradients of attention weights, which nothing else uses."""
    monkeypatch.chdir(tmp_path)
    options = {"mode": "graph"} | ({"fault": fault} if fault else {})
    try:
        target = recorded("mindspore", "llama", "L0", **options)
    finally:
        mindspore_llama.set_mode("pynative")
    for level in ("L0", "mix"):
        unit = compared(target, recorded("torch", "llama", level))
        if fault is not None:
            assert unit.first_fault.entry == "Cell.layers.0.self_attn.Attention.forward.0"
            continue
        assert unit.agrees
        modules = unit.rows.filter(is_module_row(unit.rows))
        assert modules.height == 168
        assert modules.filter(modules["match"] != "both")["name_golden"].to_list() == [
            f"Module.layers.{layer}.self_attn.Attention.backward.0.input.1" for layer in (1, 0)
        ]
        assert modules["judged_error"].max() < FP32_NOISE


def test_a_loss_around_the_model_is_found_out(recorded):
    unit = compared(recorded("mindspore", "llama", "L0", wraps=True), recorded("torch", "llama", "L0"))
    assert unit.agrees
    assert any("'net'" in note or "'model'" in note or "'_backbone'" in note for note in unit.notes)


def test_one_level_against_another(recorded):
    unit = compared(recorded("mindspore", "llama", "L0"), recorded("torch", "llama", "mix"))
    assert unit.agrees
    assert any(note.startswith("what the target has recorded none of, and is not compared: inputs of APIs") for note in
               unit.notes)  # fmt: skip


BLOCKED = """
import sys
sys.modules["torch"] = sys.modules["mindspore"] = None
from msprobe_core.cli.main import main
status = main(sys.argv[1:])
assert sys.modules["torch"] is None and sys.modules["mindspore"] is None
sys.exit(status)
"""


@pytest.mark.slow
def test_neither_framework_is_needed(recorded, tmp_path):
    for fault, status in ((None, 0), (Fault.EPS, 1)):
        target = recorded("mindspore", "llama", "mix", **({"fault": fault} if fault else {}))
        result = tmp_path / f"result{status}"
        command = ["compare", "-tp", str(target), "-gp", str(recorded("torch", "llama", "mix")), "-o", str(result)]
        done = subprocess.run([sys.executable, "-c", BLOCKED, *command], capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1].startswith("AGREE: every row" if status == 0 else "DIFFERENT: first at")
        assert json.loads((result / "summary.json").read_text())["agrees"] == (status == 0)


API_FORMS = {
    "flat": "Mint.mul: Tensor.pow",
    "list": "- {ms_api: Mint.mul, pt_api: Tensor.pow, ms_args: [0], pt_args: [0], ms_output: [0], pt_output: [0]}",
    "by name": "Mint.mul: {pt_api: Tensor.pow, ms_args: [0], pt_args: [0]}",
    "turned": "Tensor.pow: Mint.mul",
}


@pytest.mark.parametrize("form", API_FORMS)
def test_apis_of_the_users(recorded, tmp_path, form):
    """Here mint.mul(x, x) is there x.pow(2): said in a file, in any of its forms, the two are compared."""
    (tmp_path / "apis.yaml").write_text(API_FORMS[form])
    pair = recorded("mindspore", "llama", "mix", variant="mint"), recorded("torch", "llama", "mix")
    unit = compared(*pair, api_mapping=tmp_path / "apis.yaml")
    results = unit.rows.filter((unit.rows["role"] == "output") & (unit.rows["phase"] == "forward"))
    partners = {
        golden: (own, error)
        for own, golden, error in results.select("entry", "entry_golden", "judged_error").drop_nulls().rows()
        if golden.startswith("Tensor.pow.")
    }
    assert [names.stem_of(own) for own, _ in partners.values()] == ["Mint.mul"] * 5
    assert max(error for _, error in partners.values()) < FP32_NOISE


def test_modules_of_the_users(recorded, tmp_path):
    (tmp_path / "cells.yaml").write_text("mlp.MLP: mlp.MLP\nembed_tokens.Embedding: embed_tokens.Embedding\n")
    unit = compared(
        recorded("mindspore", "llama", "mix"), recorded("torch", "llama", "mix"), cell_mapping=tmp_path / "cells.yaml"
    )
    assert unit.agrees
    assert not any("do not match" in note for note in unit.notes)


def test_layers_of_the_users(recorded, tmp_path):
    (tmp_path / "layers.yaml").write_text("Embedding: {gather.Gather: embedding}\nRMSNorm: {__mul__: mul}\n")
    unit = compared(
        recorded("mindspore", "llama", "mix"), recorded("torch", "llama", "mix"), layer_mapping=tmp_path / "layers.yaml"
    )
    modules = unit.rows.filter(is_module_row(unit.rows))
    assert modules["match"].unique().to_list() == ["both"]
    assert unit.counts["error"] == 0
