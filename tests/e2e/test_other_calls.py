"""Two runs of which one makes other calls: everything else is compared all the same."""

import json

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from msprobe_core.compare import compare_dumps
from msprobe_core.compare.mapping_files import read_matching
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.store.reading import read_dump


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Renamed(Norm):
    pass


class Block(nn.Module):
    """A layer as language models have it, with places where a test lets it do more or less."""

    def __init__(self, size, norm=Norm):
        super().__init__()
        self.input_norm, self.output_norm = norm(size), norm(size)
        self.q, self.k, self.v, self.o = (nn.Linear(size, size, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(size, 2 * size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.down = nn.Linear(2 * size, size, bias=False)
        self.act, self.extra = nn.SiLU(), nn.Identity()
        self.changes = set()

    def forward(self, x):
        h = self.input_norm(x)
        if "scale" in self.changes:
            h = h * 1.0  # as many numbers as before, and one call more of what is used everywhere
        q, k, v = self.q(h), self.k(h), self.v(h)
        scores = torch.matmul(q, k.transpose(-1, -2)) * 0.25
        if "twice" in self.changes:
            scores = scores * 1.0
        x = x + self.o(torch.matmul(functional.softmax(scores, dim=-1), v))
        h = self.output_norm(x)
        if "module" in self.changes:
            h = self.extra(h)
        if "no product" in self.changes:
            return x + self.down(self.act(self.gate(h)))
        return x + self.down(self.act(self.gate(h)) * self.up(h))


class Net(nn.Module):
    def __init__(self, norm=Norm, *, recomputes=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(Block(8, norm) for _ in range(3))
        self.head = nn.Linear(8, 20, bias=False)
        self.recomputes = recomputes

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputes else layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


@pytest.fixture
def record(tmp_path, close_debugger):
    def record(name, model, *, level="mix", micro_batches=1, **config):
        (tmp_path / "c.json").write_text(json.dumps({"task": "statistics", **config}))
        debugger = PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / name, level=level)
        torch.manual_seed(9)
        with debugger.start(model):
            for _ in range(micro_batches):
                model(torch.randint(20, (2, 5))).backward()
        debugger.close()
        return tmp_path / name / "step0"

    return record


def unit_of(target, golden, **matching):
    result = compare_dumps(target, golden, options=CompareOptions(matching=read_matching(**matching)))
    (unit,) = result.units
    return unit


def lone(unit, side):
    column = "entry" if side == "target" else "entry_golden"
    return unit.rows.filter(match=f"only {side}")[column].unique(maintain_order=True).to_list()


def check_others(unit):
    """Everything that both sides have agrees."""
    paired = unit.rows.filter(match="both")
    assert paired["verdict"].unique().to_list() == ["pass"], paired.filter(verdict="error")["messages"].to_list()[:3]
    assert unit.fault is None


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("change", ["scale", "twice"])
def test_an_extra_call(record, change, level, micro_batches):
    golden = record("golden", Net(), level=level, micro_batches=micro_batches)
    model = Net()
    model.layers[1].changes.add(change)
    target = record("target", model, level=level, micro_batches=micro_batches)
    unit = unit_of(target, golden)
    check_others(unit)
    # Per layer: twice per normalisation, the scale of the scores, the gated product.
    number = 6 + 2 + (change == "twice")
    names = [f"Tensor.__mul__.{number + 18 * i + i}" for i in range(micro_batches)]
    assert sorted(lone(unit, "target")) == sorted(
        f"{name}.{phase}" for name in names for phase in ("forward", "backward")
    )
    assert lone(unit, "golden") == []
    assert unit.lone_call.entry == f"{names[0]}.forward"
    assert unit.lone_call.only_on == "target"
    if level == "mix":
        assert unit.lone_call.parent == "Module.layers.1.Block.forward.0"
    assert any(__file__ in frame for frame in unit.lone_call.stack)
    # The same the other way round.
    turned = unit_of(golden, target)
    check_others(turned)
    assert sorted(lone(turned, "golden")) == sorted(lone(unit, "target"))
    assert (turned.lone_call.entry, turned.lone_call.only_on) == (f"{names[0]}.forward", "golden")


def test_an_extra_module_call(record):
    golden = record("golden", Net())
    model = Net()
    model.layers[1].changes.add("module")
    unit = unit_of(record("target", model), golden)
    check_others(unit)
    assert unit.lone_call.entry == "Module.layers.1.extra.Identity.forward.0"
    assert lone(unit, "golden") == []
    assert {entry.rpartition(".")[0].rpartition(".")[0] for entry in lone(unit, "target")} == {
        "Module.layers.1.extra.Identity"
    }


def test_a_missing_call(record):
    """What comes after it gets other values; the calls before it, and all of the other layers', are paired rightly."""
    golden = record("golden", Net())
    model = Net()
    model.layers[1].changes.add("no product")
    unit = unit_of(record("target", model), golden)
    assert lone(unit, "target") == []
    missing = {entry for entry in lone(unit, "golden") if entry.endswith(".forward") or ".forward." in entry}
    assert missing == {
        "Functional.linear.12.forward",
        "Module.layers.1.up.Linear.forward.0",
        "Tensor.__mul__.11.forward",
    }
    first = unit.rows.filter(verdict="error").head(1)["entry"].item()
    assert first == "Functional.linear.12.forward"  # the first after what is missing: layers.1.down
    paired = unit.rows.filter(match="both")
    before = paired.head(paired["entry"].to_list().index(first))
    assert before["verdict"].unique().to_list() == ["pass"]
    assert (paired["shape_target"] == paired["shape_golden"]).drop_nulls().all()


def test_a_module_of_another_class(record):
    unit = unit_of(record("target", Net(Renamed)), record("golden", Net(Norm)))
    check_others(unit)
    assert unit.agrees
    assert any("Module.layers.0.input_norm.Renamed with Module.layers.0.input_norm.Norm" in note for note in unit.notes)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("writer", ["json", "arrow"])
def test_only_one_run_recomputes(record, level, writer):
    """Recomputed calls have no partner, and take none from the others, also where there are several micro-batches."""
    settings = {"level": level, "micro_batches": 2, "writer": writer}
    golden = record("golden", Net(), **settings)
    target = record("target", Net(recomputes=True), **settings)
    unit = unit_of(target, golden)
    check_others(unit)
    assert lone(unit, "golden") == []
    again = read_dump(next(target.iterdir())).recomputed
    assert again
    assert lone(unit, "target") == [
        entry
        for entry in read_dump(next(target.iterdir())).frame["entry"].unique(maintain_order=True)
        if entry in again
    ]


@pytest.mark.parametrize("options", [{}, {"is_fuzzy": True}, {"cell_mapping": True}, {"layer_mapping": True}])
def test_options_leave_equal_runs_equal(record, options):
    unit = unit_of(record("target", Net(), micro_batches=2), record("golden", Net(), micro_batches=2), **options)
    assert unit.agrees
    assert (unit.rows["entry"] == unit.rows["entry_golden"]).all()
