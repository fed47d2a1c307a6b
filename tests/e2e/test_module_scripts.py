"""Modules of PyTorch's own classes are made again from the manifest: their calls are checked, and have scripts."""

import json

import pytest
import torch
from replay_scripts import COMMAND, run_here
from torch import nn
from wrong_kernels import record as record_modules

from msprobe_core import names
from msprobe_core.api_check.call_check import CallChecker
from msprobe_core.api_check.dump_check import CheckOptions, DumpCheck
from msprobe_core.api_check.reproducer import MOST_LINES, write_reproducer
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.errors import ReplayError
from msprobe_core.model import Phase
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.recorded import RecordedCalls
from msprobe_core.store.reading import read_dump


@pytest.fixture(autouse=True)
def _closed(close_debugger):
    return


def recorded(place, model, *inputs, **config):
    """Return the dump of one step of a model, forward and backward."""

    def run(debugger):
        torch.manual_seed(0)
        with debugger.start(model):
            result = model(*inputs)
            result = result[0] if isinstance(result, tuple) else result
            (result * torch.randn_like(result)).sum().backward()

    return record_modules(place, run, **({"level": "L0"} | config))


class Around(nn.Module):
    """Calls a layer with what another computed, so that gradients of its inputs are recorded."""

    def __init__(self, layer):
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 1.5))
        self.layer = layer

    def forward(self, *inputs):
        return self.layer(*(each * self.scale for each in inputs))


IMAGE, ROWS = (2, 4, 8, 8), (3, 6, 8)
LAYERS = {
    "linear": (lambda: nn.Linear(8, 5, bias=False), ROWS),
    "conv1d": (lambda: nn.Conv1d(6, 4, 3, 2, padding="valid", dilation=2, groups=2), ROWS),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), bias=False, padding_mode="circular"), IMAGE),
    "transposed": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "layer norm": (lambda: nn.LayerNorm((6, 8), eps=0.1), ROWS),
    "rms norm": (lambda: nn.RMSNorm(8, eps=0.1), ROWS),
    "group norm": (lambda: nn.GroupNorm(2, 4, eps=0.1, affine=False), IMAGE),
    "batch norm": (lambda: nn.BatchNorm2d(4, eps=0.1, track_running_stats=False), IMAGE),
    "instance norm": (lambda: nn.InstanceNorm2d(4, eps=0.1, affine=True), IMAGE),
    "lstm": (lambda: nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True), ROWS),
    "gru": (lambda: nn.GRU(8, 5, bias=False), ROWS),
    "rnn": (lambda: nn.RNN(8, 5, nonlinearity="relu"), ROWS),
    "gelu": (lambda: nn.GELU(approximate="tanh"), ROWS),
    "softmax": (lambda: nn.Softmax(dim=1), ROWS),
    "leaky": (lambda: nn.LeakyReLU(0.3, inplace=True), ROWS),
    "prelu": (lambda: nn.PReLU(6, init=0.4), ROWS),
    "pool": (lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), IMAGE),
    "adaptive": (lambda: nn.AdaptiveAvgPool2d((3, None)), IMAGE),
    "upsample": (lambda: nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True), IMAGE),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.SiLU(), nn.Linear(8, 3)), nn.ReLU(True)),
        ROWS,
    ),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_layers_are_checked_and_have_scripts(tmp_path, monkeypatch, capsys, layer):
    make, shape = layer
    torch.manual_seed(0)
    unit = recorded(tmp_path / "dump", Around(make()), torch.randn(shape))
    framework, check = replaying_framework("pytorch"), DumpCheck.of(unit, CheckOptions())
    verdicts = {each.entry: each for each in check.run(workers=0) if each.entry.startswith("Module.layer.")}
    assert {each.verdict for each in verdicts.values()} == {Verdict.RIGHT}, verdicts
    assert {each.phase for each in verdicts.values()} == {Phase.FORWARD, Phase.BACKWARD}
    for entry, verdict in verdicts.items():
        path = write_reproducer(check.read(entry), verdict, framework, tmp_path / "scripts", command=COMMAND)
        text = path.read_text()
        assert "msprobe" not in text.split("\nimport ", 1)[1]
        assert len(text.splitlines()) <= MOST_LINES
        assert run_here(path, monkeypatch) == 0, f"{text}{capsys.readouterr()}"


def test_a_wrong_layer_is_wrong_in_the_check_and_in_its_script(tmp_path, monkeypatch, capsys):
    class Off(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) * torch.tensor([1.0] * 7 + [1.001])

    Off.__module__, Off.__name__, Off.__qualname__ = nn.LayerNorm.__module__, "LayerNorm", "LayerNorm"
    unit = recorded(tmp_path / "dump", Around(Off(8)), torch.randn(ROWS))
    check = DumpCheck.of(unit, CheckOptions())
    entry = "Module.layer.LayerNorm.forward.0"
    verdict = {each.entry: each for each in check.run(workers=0)}[entry]
    assert verdict.verdict is Verdict.WRONG
    path = write_reproducer(check.read(entry), verdict, replaying_framework("pytorch"), tmp_path, command=COMMAND)
    assert run_here(path, monkeypatch) == 1
    said = capsys.readouterr().out
    assert "recorded 0: WRONG" in said
    assert "cpu      0: right" in said


def hooked():
    layer = nn.Linear(8, 8)
    layer.register_forward_hook(lambda *_: None)
    return layer


REFUSED = {
    "of the program": (
        lambda: Around(nn.ReLU()),
        "it is a .*Around, whose code is not in a dump; record",
    ),
    "buffers": (lambda: nn.BatchNorm1d(6), "values of buffers, such as its running_mean, .* record with level mix"),
    "dropout": (lambda: nn.LSTM(8, 8, 2, dropout=0.1), "it may have drawn random numbers.* record with level mix"),
    "hooks": (hooked, "hooks of the program may change what this Linear does"),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_made_again_says_what_to_record(tmp_path, refused):
    make, message = refused
    with pytest.raises(ReplayError, match=message):
        script_of_layer(recorded(tmp_path, Around(make()), torch.randn(ROWS)))


def script_of_layer(unit):
    calls = RecordedCalls(read_dump(unit), 1 << 20)
    (entry,) = [
        each for each in calls.entries if each.startswith("Module.layer.") and each.endswith("forward.0")
        and names.parse_entry(each).path == "layer"
    ]  # fmt: skip
    framework, call = replaying_framework("pytorch"), calls.read(entry)
    return write_reproducer(call, CallChecker(framework=framework).check(call), framework, unit, command=COMMAND)


def test_attention_has_parameters_of_a_layer_that_is_never_called(tmp_path):
    model = Around(nn.MultiheadAttention(8, 2))
    unit = recorded(tmp_path / "dump", model, *[torch.randn(ROWS)] * 3, level="mix")
    with pytest.raises(ReplayError, match=r"its parameter out_proj\.weight is not in the dump; .* level mix"):
        script_of_layer(unit)
    inside = RecordedCalls(read_dump(unit), 1 << 20).read("Functional.multi_head_attention_forward.0.forward")
    assert CallChecker(framework=replaying_framework("pytorch")).check(inside).verdict is Verdict.RIGHT


def test_without_a_manifest_nothing_says_how_a_layer_was_made(tmp_path):
    unit = recorded(tmp_path, Around(nn.Linear(8, 3)), torch.randn(ROWS))
    (unit / "manifest.json").unlink()
    with pytest.raises(ReplayError, match="no manifest beside the dump says how this Linear was made"):
        script_of_layer(unit)


HOSTILE = {
    "class": {"type": "torch.nn.modules.linear.Module"},
    "other class": {"type": "torch.nn.modules.linear.Linear; open('x')"},
    "other place": {"type": "torchx.nn.modules.linear.Linear"},
    "size": {"type": "torch.nn.modules.pooling.AdaptiveAvgPool1d", "settings": {"output_size": 1 << 40}},
    "layers": {"type": "torch.nn.modules.rnn.LSTM", "settings": {
        "input_size": 8, "hidden_size": 3, "num_layers": 1 << 40, "bias": True, "batch_first": True, "dropout": 0.0,
        "bidirectional": False, "proj_size": 0}},
    "sequence": {"type": "torch.nn.modules.activation.Softmax", "settings": {"dim": "[open('x')]"}},
}  # fmt: skip


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_manifest_makes_nothing(tmp_path, changes):
    unit = recorded(tmp_path, Around(nn.ReLU()), torch.randn(ROWS))
    path = unit / "manifest.json"
    content = json.loads(path.read_text())
    (layer,) = [each for each in content["run"]["models"][0]["modules"] if each["path"] == "layer"]
    layer |= changes
    path.write_text(json.dumps(content))
    with pytest.raises(ReplayError):
        script_of_layer(unit)
