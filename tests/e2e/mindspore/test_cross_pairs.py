"""Pairs of ``bench/cross`` in MindSpore and PyTorch: locate calls no healthy one faulty, and finds what is planted."""

import pytest

pytest.importorskip("mindspore")
torch = pytest.importorskip("torch")

from bench.cross.families import PAIRS  # noqa: E402
from bench.cross.faults import FAULTS  # noqa: E402
from bench.cross.recording import Mode, record, state_of, training_of  # noqa: E402
from msprobe_core.compare import compare_dumps  # noqa: E402
from msprobe_core.compare.unit import CompareOptions  # noqa: E402
from msprobe_core.judge.noise import NoiseModel  # noqa: E402
from msprobe_core.locate import FaultKind, LocateOptions, LocateVerdict, locate  # noqa: E402

BY_ROUNDING = LocateOptions(compare=CompareOptions(noise=NoiseModel()))
# ResNet and BERT have the layers that are left to the slow run: Conv2d, BatchNorm2d and LayerNorm.
QUICK = (
    "layer topk smallest", "layer where", "layer gather", "layer Tanh", "layer LSTM", "ResNet 8-16", "BERT 2 layers",
)  # fmt: skip
SLOW = (
    "layer LayerNorm", "layer BatchNorm2d", "layer Conv2d", "layer LayerNorm of a large mean",
    "layer sort", "layer softmax", "GRU and experts 4 experts", "CLIP 16",
    "WaveNet 3 layers", "MLP-Mixer 2 layers", "radiance field 24", "DCGAN 8 Adam", "BERT Adam",
)  # fmt: skip
SAMPLE = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


class Recorder:
    """Records a pair in either framework, each kind once."""

    def __init__(self, directory):
        self._directory = directory
        self._states = {}

    def __call__(self, framework, name, mode, fault=None):
        place = self._directory / "-".join(
            [framework, name, mode.level, mode.task, mode.dtype, fault.name if fault else ""]
        )
        if not place.exists():
            torch.set_num_threads(1)
            pair = PAIRS[name]
            state = self._states.setdefault(name, state_of(pair))
            training = training_of(framework, pair, state, mode.dtype)
            if fault is not None:
                fault.plant(training)
            record(framework, pair, training, place, mode)
        return place


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return Recorder(tmp_path_factory.mktemp("pairs"))


@pytest.mark.parametrize("name", SAMPLE)
def test_a_healthy_pair_is_not_called_faulty(recorded, name):
    """Two steps, at level mix in either direction."""
    for level in ("L0", "mix"):
        own, other = (recorded(framework, name, Mode(level)) for framework in ("mindspore", "pytorch"))
        for target, golden in ((own, other), (other, own))[: 2 if level == "mix" else 1]:
            found = locate(target, golden, BY_ROUNDING)
            assert found.verdict is LocateVerdict.AGREE, (level, found.suspects[0])
        if name != "CLIP 16":  # a call of its loss, outside of all modules, has no partner
            assert compare_dumps(own / "step0", other / "step0").agrees


def test_later_steps_without_parameters_are_not_judged(recorded):
    """At level L1 nothing says how far the updates of two frameworks may be apart."""
    own, other = (recorded(framework, "BERT 2 layers", Mode("L1")) for framework in ("mindspore", "pytorch"))
    found = locate(own, other, BY_ROUNDING)
    assert found.verdict is LocateVerdict.AGREE
    assert found.examined.text.startswith("1 of 2 steps")
    assert any(
        note.text.startswith("later steps were not looked at: no parameters were recorded") for note in found.notes
    )


@pytest.mark.slow
def test_a_healthy_pair_in_float16(recorded):
    mode = Mode("mix", dtype="float16")
    found = locate(
        *(recorded(framework, "MLP-Mixer 2 layers", mode) for framework in ("mindspore", "pytorch")), BY_ROUNDING
    )
    assert found.verdict is LocateVerdict.AGREE
    assert found.num_nodes > 300


TOLD = {
    "epsilon 1e-2": FaultKind.COMPUTATION,
    "weight x 1.01": FaultKind.PARAMETER,
    "gradient x 1.1": FaultKind.GRADIENT,
    "float16 inside": FaultKind.COMPUTATION,
    "gradient of one weight x 1.1 before the optimizer": FaultKind.OPTIMIZER,
    "all gradients x 1.1 before the optimizer": FaultKind.OPTIMIZER,
    "transposed weight": FaultKind.COMPUTATION,
    "residual missing": None,
    "learning rate x 1.1": FaultKind.OPTIMIZER,
}


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("name", TOLD)
def test_a_fault_is_named_first(recorded, name, level):
    (fault,) = (each for each in FAULTS if each.name == name and each.pair == "BERT 2 layers")
    golden = recorded("pytorch", fault.pair, Mode(level))
    found = locate(recorded("mindspore", fault.pair, Mode(level), fault), golden, BY_ROUNDING)
    first = found.suspects[0]
    assert "any" in fault.modules or first.module in fault.modules
    assert TOLD[name] in (first.kind, None)
    if "all gradients" in name:
        assert "The updates of all parameters are 1.1 times the golden ones." in first.reason.text


def test_a_router_that_takes_the_smallest_is_blamed_forward(recorded):
    (fault,) = (each for each in FAULTS if each.name == "router takes the smallest")
    golden = recorded("pytorch", fault.pair, Mode("mix"))
    first = locate(recorded("mindspore", fault.pair, Mode("mix"), fault), golden, BY_ROUNDING).suspects[0]
    assert first.entry == "Functional.topk.0.forward"
    assert first.kind is FaultKind.ARGUMENT


@pytest.mark.slow
def test_what_a_layer_is_put_together_from_explains_nothing(recorded):
    """MindSpore's recurrent layers have Cells inside that PyTorch's have not."""
    (fault,) = (each for each in FAULTS if "gates" in each.name and each.pair == "GRU and experts 4 experts")
    golden = recorded("pytorch", fault.pair, Mode("L0"))
    first = locate(recorded("mindspore", fault.pair, Mode("L0"), fault), golden, BY_ROUNDING).suspects[0]
    assert first.entry == "Cell.rnn.GRU.forward.0"
    assert first.only_on is None
