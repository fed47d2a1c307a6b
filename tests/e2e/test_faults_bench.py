"""The benchmark of planted faults: its faults are faults, where it says, and its scores are right."""

import json

import pytest
import torch

pytest.importorskip("transformers")

from bench.faults.answers import Answer, Nesting, Suspect
from bench.faults.architectures import ARCHITECTURES
from bench.faults.in_training import MODEL_FAULTS
from bench.faults.kernels import HalvedProducts
from bench.faults.mindspore_pair import MINDSPORE_FAULTS
from bench.faults.parallel import PARALLEL_FAULTS, WORLDS
from bench.faults.scoring import is_right, module_path, score
from bench.faults.single import faults_of
from bench.faults.training import Training
from bench.faults.truth import Fault, Kind, Phase, Registry, Truth

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

SAMPLE = (
    "output x 1.01 (down)",
    "input cast to a coarser dtype",
    "epsilon of a norm 1e-3",
    "causal mask off by one",
    "weights of two layers swapped",
    "residual after the norm",
    "gradient x 1.01",
    "branch detached",
    "second beta of one group 0.9",
    "gradients not zeroed",
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llama():
    return Training("llama").fingerprint()


def test_every_fault_says_what_it_is_and_applies_somewhere():
    faults = MODEL_FAULTS.faults
    assert len(faults) >= 40
    assert {fault.phase for fault in faults.values()} >= {
        Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.CONFIGURATION
    }  # fmt: skip
    applied = {fault.name for name in ARCHITECTURES for fault in faults_of(name)}
    assert applied == set(faults)
    assert all(fault.kinds for fault in faults.values())
    assert all(set(fault.only) <= set(ARCHITECTURES) for fault in faults.values())


def test_there_are_faults_of_several_processes_and_of_mindspore():
    assert {name for fault in PARALLEL_FAULTS.faults.values() for name in fault.only} == set(WORLDS)
    assert Phase.COMMUNICATION in {fault.phase for fault in PARALLEL_FAULTS.faults.values()}
    assert len(MINDSPORE_FAULTS.faults) >= 10


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_anatomy_names_modules(name):
    training = Training(name)
    paths = {part: path for part, path in vars(training.anatomy).items() if isinstance(path, str)}
    assert len(paths) > 10
    for part, path in paths.items():
        assert not path or training.module(path) is not None, part


def test_a_name_is_taken_once():
    registry = Registry()
    registry.add("one", Phase.FORWARD, Kind.SCALE)(lambda training: Truth())
    with pytest.raises(ValueError, match="'one'"):
        registry.add("one", Phase.FORWARD, Kind.SCALE)(lambda training: Truth())


def test_trainings_repeat_bit_for_bit_but_for_other_kernels(llama):
    assert Training("llama").fingerprint() == llama
    assert Training("llama").fingerprint(HalvedProducts()) != llama


@pytest.mark.parametrize("dtype", ["mixed-bf16", "mixed-fp16"])
def test_mixed_precision_keeps_weights_in_float32(llama, dtype):
    training = Training("llama", dtype)
    calls = set()
    training.model.lm_head.register_forward_hook(lambda module, inputs, output: calls.add(output.dtype))
    fingerprint = training.fingerprint()
    assert fingerprint == Training("llama", dtype).fingerprint() != llama
    assert {parameter.dtype for parameter in training.model.parameters()} == {torch.float32}
    assert calls == {torch.bfloat16 if dtype == "mixed-bf16" else torch.float16}
    assert (training.scaler is not None) == (dtype == "mixed-fp16")
    faulty = Training("llama", dtype)
    MODEL_FAULTS.faults["output x 1.1 (down)"].plant(faulty)
    assert faulty.fingerprint() != fingerprint


@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_changes_the_training_in_modules_that_exist(llama, name):
    training = Training("llama")
    truth = MODEL_FAULTS.faults[name].plant(training)
    names = {path for path, _ in training.model.named_modules()}
    assert set(truth.modules) <= names
    assert truth.modules or truth.calls or truth.groups
    assert training.fingerprint() != llama


@pytest.mark.slow
def test_the_truth_is_in_the_dump(tmp_path):
    training = Training("llama")
    truths = [fault.plant(Training("llama")) for fault in faults_of("llama") if fault.recipe == "plain"]
    training.record(tmp_path / "run", "statistics")
    nesting: dict[str, str | None] = {}
    for path in tmp_path.glob("run/step0/*/construct.json"):
        nesting |= json.loads(path.read_text())
    modules = {module_path(entry) for entry in nesting}
    groups = set(nesting.values())
    for truth in truths:
        assert not truth.modules or set(truth.modules) & modules, truth
        assert set(truth.groups) <= groups, truth
        assert all(any(entry.startswith(call) for entry in nesting) for call in truth.calls[:1]), truth


LINEAR = "Module.layers.1.down.Linear.forward.0"
BLOCK = "Module.layers.1.Block.forward.0"
PARENTS = {
    "Functional.linear.1.forward": LINEAR,
    LINEAR: BLOCK,
    "Tensor.__add__.0.forward": BLOCK,
    BLOCK: "Module.Net.forward.0",
    "Module.Net.forward.0": None,
    "Module.layers.1.down.Linear.backward.0": "Module.layers.1.Block.backward.0",
    "Module.layers.1.down.Linear.parameters_grad.0": None,
    "Tensor.addcdiv_.3.forward": "optimizer",
    "Functional.cross_entropy.0.forward": None,
}


@pytest.fixture
def nesting(tmp_path):
    for step in ("step0", "step1"):
        directory = tmp_path / "golden" / step / "rank0"
        directory.mkdir(parents=True)
        (directory / "construct.json").write_text(json.dumps(PARENTS))
    return Nesting(tmp_path / "target", tmp_path / "golden")


DOWN = Truth(modules=("layers.1.down",), directions=("forward",), steps=(0,), ranks=(0,))


@pytest.mark.parametrize(
    ("truth", "entry", "step", "rank", "expected"),
    [
        (DOWN, LINEAR, 0, 0, True),
        (DOWN, "Functional.linear.1.forward", 0, 0, True),
        (DOWN, LINEAR, None, None, True),
        (DOWN, BLOCK, 0, 0, False),
        (DOWN, "Tensor.__add__.0.forward", 0, 0, False),
        (DOWN, LINEAR, 1, 0, False),
        (DOWN, LINEAR, 0, 1, False),
        (DOWN, "Module.layers.1.down.Linear.backward.0", 0, 0, False),
        (DOWN, "Tensor.addcdiv_.3.forward", 0, 0, False),
        (Truth(modules=("layers.1.down",), directions=("backward",)), LINEAR, 0, 0, False),
        (
            Truth(modules=("layers.1.down",), directions=("backward",)),
            "Module.layers.1.down.Linear.parameters_grad.0",
            0,
            0,
            True,
        ),
        (Truth(groups=("optimizer",)), "Tensor.addcdiv_.3.forward", 0, 0, True),
        (Truth(groups=("clip_grad",)), "Tensor.addcdiv_.3.forward", 0, 0, False),
        (Truth(calls=("Functional.cross_entropy",)), "Functional.cross_entropy.0.forward", 0, 0, True),
        (Truth(calls=("Functional.linear",)), "Functional.linear.1.forward", 0, 0, False),
        (Truth(modules=("",)), "Module.Net.forward.0", 0, 0, True),
        (Truth(modules=("",)), "Module.DistributedDataParallel.forward.0", 0, 0, True),
    ],
)
def test_a_suspect_is_right_at_the_site_or_directly_inside(nesting, truth, entry, step, rank, expected):
    assert is_right(Suspect(step, () if rank is None else (rank,), entry), truth, nesting) is expected


def test_a_suspect_on_ranks_that_are_right_is_wrong(nesting):
    assert not is_right(Suspect(0, (0, 1), LINEAR), DOWN, nesting)


def test_scores(nesting):
    fault = Fault("scaled", Phase.FORWARD, (Kind.SCALE,), None)
    right, wrong = Suspect(0, (0,), LINEAR, "scale"), Suspect(0, (0,), BLOCK, "computation")

    def scored(verdict, *suspects):
        own = score(Answer(verdict, suspects), fault, DOWN, nesting)
        return own.detected, own.is_first, own.is_in_top_five, own.is_kind

    assert scored("agree") == (False, False, False, False)
    assert scored("failed", right) == (False, False, False, False)
    assert scored("fault", right) == (True, True, True, True)
    assert scored("fault", wrong, right) == (True, False, True, True)
    assert scored("fault", wrong) == (True, False, False, False)
    assert scored("fault", *[wrong] * 5, right) == (True, False, False, False)
    assert scored("insufficient") == (True, False, False, False)
    assert scored("fault", Suspect(0, (0,), LINEAR, "computation")) == (True, True, True, False)
