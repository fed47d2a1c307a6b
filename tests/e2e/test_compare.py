"""From two trainings to a verdict, through the command line, on real architectures."""

import json
import re
import shutil
from pathlib import Path

import faulty_jobs
import openpyxl
import polars as pl
import pytest
import torch
from architectures import ARCHITECTURES
from jobs import run_job, run_script
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded

import msprobe_core
from msprobe_core.cli import main
from msprobe_core.locate import LocateVerdict, locate
from msprobe_core.store.layout import find_units

REPOSITORY = Path(msprobe_core.__file__).parents[1]


@pytest.fixture
def record(tmp_path, close_debugger):
    def record(name, architecture, model, *, level="mix", task="statistics", summary_mode="statistics", batch=None):
        (tmp_path / "c.json").write_text(json.dumps({"task": task, task: {"summary_mode": summary_mode}}))
        debugger = PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / name, level=level)
        torch.manual_seed(9)
        batch = batch or architecture.batch()
        with debugger.start(model):
            model(**batch).loss.backward()
        debugger.close()
        return tmp_path / name / "step0"

    return record


@pytest.fixture
def compare(tmp_path, capsys):
    def compare(target, golden, *options):
        with pytest.raises(SystemExit) as ended:
            main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "result"), *options])
        out = capsys.readouterr().out
        return ended.value.code, json.loads((tmp_path / "result" / "summary.json").read_text())["units"][0], out

    return compare


MODES = {
    "statistics": {},
    "md5": {"summary_mode": "md5"},
    "tensor": {"task": "tensor"},
}


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "statistics") for name in ARCHITECTURES), ("llama", "md5"), ("whisper", "tensor")]
)
def test_two_equal_trainings_agree(name, mode, record, compare):
    architecture = ARCHITECTURES[name]
    target, golden = (record(side, architecture, architecture.build(), **MODES[mode]) for side in ("target", "golden"))
    code, unit, out = compare(target, golden)
    assert code == 0, out
    assert unit["mode"] == mode
    assert unit["first_difference"] is None
    assert unit["rows"]["total"] == unit["rows"]["pass"] > 400


def scale_layer_norm_epsilon(model):
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-2


def swap_weights(model):
    attention = model.model.layers[1].self_attn
    with torch.no_grad():
        attention.o_proj.weight.copy_(attention.q_proj.weight)


def scale_attention(model):
    model.model.layers[1].self_attn.scaling *= 1.5


def cast_activation(model):
    act = model.model.layers[0].mlp.act_fn
    original = act.forward
    act.forward = lambda x: original(x.to(torch.float8_e5m2).to(x.dtype))


FAULTS = {
    "a normalisation's epsilon": (
        scale_layer_norm_epsilon, "Module.model.layers.1.post_attention_layernorm.LlamaRMSNorm.forward.0",
    ),
    "a swapped weight": (swap_weights, "Module.model.layers.1.self_attn.o_proj.Linear.forward.0"),
    "the scale of attention": (scale_attention, "Module.model.layers.1.self_attn.LlamaAttention.forward.0"),
    "a cast to float8": (cast_activation, "Module.model.layers.0.mlp.act_fn.SiLUActivation.forward.0"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "level", "mode"),
    [
        *((fault, level, "statistics") for fault in FAULTS for level in ("L0", "mix")),
        ("a normalisation's epsilon", "mix", "md5"), ("the scale of attention", "mix", "tensor"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_named(fault, level, mode, record, compare):
    plant, place = FAULTS[fault]
    architecture = ARCHITECTURES["llama"]
    faulty = architecture.build()
    plant(faulty)
    target = record("target", architecture, faulty, level=level, **MODES[mode])
    golden = record("golden", architecture, architecture.build(), level=level, **MODES[mode])
    code, unit, out = compare(target, golden)
    assert code == 1
    found = unit["first_fault"]
    assert found["is_culprit"]
    assert place in (found["entry"], found["parent"])
    assert out.splitlines()[-1].startswith("DIFFERENT: first at ")
    assert place in out.splitlines()[-1]
    assert any("modeling_llama.py" in frame or "activations.py" in frame for frame in found["stack"])


def test_a_fault_of_the_backward_only_is_named(record, compare):
    architecture = ARCHITECTURES["llama"]

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 1.25

    faulty = architecture.build()
    norm = faulty.model.layers[1].input_layernorm
    original = norm.forward
    norm.forward = lambda x: original(Wrong.apply(x))
    target = record("target", architecture, faulty, level="L0")
    golden = record("golden", architecture, architecture.build(), level="L0")
    code, unit, _ = compare(target, golden)
    assert code == 1
    assert unit["first_fault"]["entry"] == "Module.model.layers.1.input_layernorm.LlamaRMSNorm.backward.0"


def test_other_data_are_said_to_come_from_outside(record, compare):
    architecture = ARCHITECTURES["bert"]
    target = record("target", architecture, architecture.build(), level="L0", batch=architecture.batch(1))
    golden = record("golden", architecture, architecture.build(), level="L0", batch=architecture.batch(0))
    code, unit, out = compare(target, golden)
    assert code == 1
    assert not unit["first_fault"]["is_culprit"]
    assert "the fault is outside of what was recorded" in out


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "bert", "vit"])
def test_bfloat16_against_float32_is_no_fault(name, record, compare):
    """A different dtype alone is no error, and what rounding does stays within bfloat16's limit."""
    architecture = ARCHITECTURES[name]
    batch = {k: v.bfloat16() if v.is_floating_point() else v for k, v in architecture.batch().items()}
    target = record("target", architecture, architecture.build().eval().bfloat16(), batch=batch)
    golden = record("golden", architecture, architecture.build().eval())
    code, unit, out = compare(target, golden)
    assert code == 0, out
    assert unit["rows"]["error"] == 0
    assert unit["first_difference"] is not None


@pytest.mark.slow
def test_a_spreadsheet_of_a_real_comparison(record, compare):
    architecture = ARCHITECTURES["llama"]
    faulty = architecture.build()
    scale_attention(faulty)
    target = record("target", architecture, faulty, level="L0")
    golden = record("golden", architecture, architecture.build(), level="L0")
    _, unit, _ = compare(target, golden, "--xlsx")
    sheet = openpyxl.load_workbook(unit["tables"][0]).active
    assert sheet.max_row == unit["rows"]["total"] + 1
    assert "stack" in [cell.value for cell in sheet[1]]


@pytest.mark.slow
def test_our_dump_against_one_of_mindstudio_probe(tmp_path, close_debugger, compare):
    """The model that made the fixtures, recorded by us: what both tools record the same way agrees."""
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(4, 5)
            self.norm = nn.LayerNorm(5)
            self.fc2 = nn.Linear(5, 3)

        def forward(self, x, *, mask=None):
            h = torch.relu(self.norm(self.fc1(x)))
            if mask is not None:
                h = h.masked_fill(mask, float("-inf"))
            return self.fc2(torch.nan_to_num(h, neginf=0.0)) * 2

    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 4)
    mask = torch.tensor([[True, False, False, False, True]])
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="mix", risk_level="ALL")
    with debugger.start(model):
        y = model(x, mask=mask)
        z = (y * float("nan")).nan_to_num(1.0)
        (y.sum() + z.sum()).backward()
    debugger.close()

    ours = tmp_path / "run" / "step0"
    for release in ("26.2.0", "8.3.3", "1.2.2"):
        theirs = REPOSITORY / "tests" / "data" / "mindstudio_probe" / f"{release}_statistics" / "step0"
        for pair in ((ours, theirs), (theirs, ours)):
            code, unit, out = compare(*pair)
            assert (code, unit["rows"]["error"], unit["rows"]["unmatched"]) == (0, 0, 0), out
            assert any("recorded by different tools" in note for note in unit["notes"])
            table = pl.read_csv(unit["tables"][0], infer_schema=False)
            judged = table.filter(
                pl.col("golden_name").is_not_null() & ~pl.col("reason").fill_null("").str.contains("two tools")
            )
            assert judged.filter(verdict="pass").height > 40
            assert locate(*(find_units(side)[0].directory for side in pair)).verdict is LocateVerdict.AGREE
        changed = shutil.copytree(theirs, tmp_path / release)
        path = find_units(changed)[0].directory / "dump.json"
        record = json.loads(path.read_text())
        output = record["data"]["Functional.linear.1.forward"]["output"][0]
        output.update({name: output[name] * 1.1 for name in ("Max", "Min", "Mean", "Norm")})
        path.write_text(json.dumps(record))
        code, unit, _ = compare(changed, ours)
        assert (code, unit["first_fault"]["entry"]) == (1, "Functional.linear.1.forward")


def test_two_ranks_with_gloo(tmp_path, compare):
    run_job(faulty_jobs.record_data_parallel, 2, tmp_path)
    step0, step1 = (tmp_path / "golden" / f"step{i}" for i in range(2))
    assert sorted(path.name for path in step0.iterdir()) == ["rank0", "rank1"]
    assert compare(tmp_path / "again" / "step1", step1)[0] == 0
    code, _, out = compare(tmp_path / "fault" / "step1", step1)
    assert code == 1
    assert re.search(r"DIFFERENT: first at rank\d: Module\.module\.0\.Linear|DIFFERENT: first at rank", out)
    summary = json.loads((tmp_path / "result" / "summary.json").read_text())
    assert [unit["label"] for unit in summary["units"]] == ["rank0", "rank1"]
    rank1 = summary["units"][1]["first_fault"]
    assert not rank1["is_culprit"]
    tables = [Path(table).name for unit in summary["units"] for table in unit["tables"]]
    assert [table.split("_")[2] for table in tables] == ["rank0", "rank1"]


def test_the_demo_names_the_planted_fault(tmp_path, compare):
    script = REPOSITORY / "examples" / "demo" / "train.py"
    golden = run_script(script, tmp_path / "golden.log", "--dump", tmp_path / "golden")
    target = run_script(script, tmp_path / "target.log", "--dump", tmp_path / "target", "--fault")
    (planted,) = re.findall(r"planted a fault in (\S+)", target)
    assert golden.splitlines() != target.splitlines()[1:]
    code, _, out = compare(tmp_path / "target" / "step0", tmp_path / "golden" / "step0")
    assert code == 1
    assert f"in Module.{planted}.LlamaRMSNorm.forward.0." in out.splitlines()[-1]
    assert Recorded(tmp_path / "golden").header["level"] == "mix"
