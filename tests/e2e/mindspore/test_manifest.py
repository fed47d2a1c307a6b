"""The manifest of a run of MindSpore: what it says of nets, casts, optimizers and data, in both modes."""

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Tensor, mint, nn, ops  # noqa: E402
from mindspore.amp import auto_mixed_precision  # noqa: E402
from mindspore.communication import GlobalComm  # noqa: E402
from mindspore.experimental import optim  # noqa: E402
from mindspore_rig import MindSporeRig, dense  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402

from msprobe_core.capture.window import Model  # noqa: E402
from msprobe_core.store.manifest_file import find_manifest, read_data_rows, read_manifest  # noqa: E402


def make_net():
    random = np.random.RandomState(0)
    return nn.SequentialCell(dense(8, 6, random), nn.LayerNorm((6,), epsilon=1e-3), nn.ReLU(), dense(6, 2, random))


def batch(step, size=4):
    random = np.random.RandomState(step)
    return Tensor(random.normal(size=(size, 8)).astype(np.float32)), Tensor(np.zeros((size, 2), np.float32))


def facts_of(net):
    return MindSporeRig().framework.run_facts([Model("", net)])


def modules_of(net):
    (model,) = facts_of(net).models
    return {module.path: module for module in model.modules}


def optimizer_of(net, optimizer):
    found = [
        each
        for each in MindSporeRig().framework.optimizers_of([Model("", net)])
        if each.type.rpartition(".")[2] == type(optimizer).__name__
    ]
    assert len(found) == 1
    return found[0]


@pytest.fixture
def recorded(tmp_path):
    """Return a function that records a program, and returns the manifest and the directory of the first step."""
    opened = []

    def record(net, steps, **settings):
        debugger = PrecisionDebugger(dump_path=str(tmp_path / "run"), task="statistics", **{"level": "L0", **settings})
        opened.append(debugger)
        results = []
        for step in steps:
            debugger.start(net)
            results.append(step())
            debugger.stop()
            debugger.step()
        debugger.close()
        (path,) = (tmp_path / "run").rglob("manifest.json")
        return read_manifest(path), path.parent, results

    yield record
    for debugger in opened:
        debugger.close()


# --- nets -------------------------------------------------------------------------------------------------------------


def test_what_a_layer_was_made_with_is_a_setting():
    """Also what it does not keep itself, but its operator."""
    modules = modules_of(make_net())
    assert modules["0"].settings["in_channels"] == 8
    assert modules["1"].type == "mindspore.nn.layer.normalization.LayerNorm"
    assert modules["1"].settings["epsilon"] == modules["1"].settings["layer_norm.epsilon"] == 1e-3
    assert "_phase" not in modules["1"].settings
    assert not any(module.hooks for module in modules.values())


def test_nothing_of_a_setting_is_an_address_or_a_value():
    """Else two equal runs would differ."""
    nets = [nn.SequentialCell(nn.Conv2d(1, 2, 3, weight_init=Tensor(np.ones((2, 1, 3, 3), np.float32)))) for _ in "ab"]
    assert modules_of(nets[0]) == modules_of(nets[1])
    assert "0x" not in repr(modules_of(nets[0]))


def test_the_text_of_a_cell_of_the_program_is_shown():
    class Scaled(nn.Cell):
        def extend_repr(self):
            return f"factor=3, of={object()}"

    assert modules_of(Scaled())[""].settings["extra_repr"].startswith("factor=3, of=<object object at 0x…")


def test_casts_are_told_apart():
    """Those of one Cell, those of the whole net, and none."""
    net = make_net()
    net[0].to_float(ms.float16)
    modules = modules_of(net)
    assert modules["0"].settings["mixed_precision"] == "FP16"
    assert "mixed_precision" not in modules["3"].settings
    whole = modules_of(auto_mixed_precision(make_net(), "O3"))
    assert {"amp_level": "O3"}.items() <= whole[""].settings.items()


def test_recomputation_is_told():
    net = make_net()
    net[0].recompute()
    assert modules_of(net)["0"].settings["recompute"] is True
    assert [path for path in modules_of(net) if "recompute" in path] == []


def test_hooks_of_the_program_are_named():
    def my_hook(cell, args):
        return None

    net = make_net()
    net[0].register_forward_pre_hook(my_hook)
    net[0].weight.register_hook(lambda gradient: gradient)
    assert list(modules_of(net)["0"].hooks) == ["forward_pre_hook", "gradient of weight"]
    assert modules_of(net)["0"].hooks["forward_pre_hook"][0].endswith("my_hook")


def test_a_shared_parameter_is_tied_to_its_first_place():
    net = nn.SequentialCell(dense(3, 3, np.random.RandomState(0)), nn.ReLU(), dense(3, 3, np.random.RandomState(1)))
    net[2].weight = net[0].weight
    net[0].bias.requires_grad = False
    modules = modules_of(net)
    tied = {(path, each.name): each.tied_to for path, module in modules.items() for each in module.parameters}
    assert tied == {("0", "weight"): None, ("0", "bias"): None, ("2", "bias"): None, ("2", "weight"): "0.weight"}
    assert [each.takes_gradient for each in modules["0"].parameters] == [True, False]


def test_a_configuration_is_flattened():
    class Configured(nn.Cell):
        def __init__(self):
            super().__init__()
            self.config = {"rope": {"theta": 10000.0}}

    (model,) = facts_of(Configured()).models
    assert model.settings == {"rope.theta": 10000.0}


# --- the process ------------------------------------------------------------------------------------------------------


def test_switches_follow_the_context():
    assert facts_of(make_net()).switches["mode"] == "PYNATIVE"
    assert facts_of(make_net()).switches["parallel.parallel_mode"] == "stand_alone"
    ms.set_context(check_bprop=True)
    try:
        assert facts_of(make_net()).switches["check_bprop"] is True
    finally:
        ms.set_context(check_bprop=False)
    assert facts_of(make_net()).switches["check_bprop"] is False


def test_the_release_is_told_with_its_commit():
    facts = facts_of(make_net())
    assert facts.framework.name == "mindspore"
    assert facts.framework.version == ms.__version__
    assert facts.framework.git is None or int(facts.framework.git, 16)
    assert facts.device.kind == "cpu"
    assert facts.groups == ()
    assert not GlobalComm.INITED


def test_generators_change_with_their_seed_only():
    found = []
    for seed in (1, 1, 2):
        ms.set_seed(seed)
        ms.manual_seed(seed)
        found.append({each.name: each for each in facts_of(make_net()).generators})
    assert found[0]["mindspore"] == found[1]["mindspore"]
    assert found[0]["mindspore"].state != found[2]["mindspore"].state
    assert found[2]["mindspore"].seed == found[2]["mindspore.operators"].seed == 2


# --- optimizers -------------------------------------------------------------------------------------------------------


def test_groups_of_a_classic_optimizer():
    """By learning rate and decay, in which parameters may have neither been given."""
    net = make_net()
    norms = list(net[1].trainable_params())
    others = [each for each in net.trainable_params() if not any(each is norm for norm in norms)]
    optimizer = nn.AdamWeightDecay(
        [{"params": norms, "weight_decay": 0.0, "lr": 0.3}, {"params": others, "weight_decay": 0.1}], 0.01, beta1=0.8
    )
    found = optimizer_of(net, optimizer)
    assert [dict(group.settings) for group in found.groups] == [
        {"lr": 0.3, "weight_decay": 0.0, "grad_centralization": False},
        {"lr": 0.01, "weight_decay": 0.1, "grad_centralization": False},
    ]
    assert found.groups[0].parameters == ("1.gamma", "1.beta")
    assert found.defaults["beta1"] == 0.8
    assert found.state_dtypes == {"moments1": "float32", "moments2": "float32"}


@pytest.mark.parametrize(("make", "steps"), [
    (lambda own: nn.Adam(own, 0.01), 2), (lambda own: nn.SGD(own, 0.1), 2), (lambda own: optim.Adam(own, 0.01), 2),
    (lambda own: optim.SGD(own, 0.01), None),
])  # fmt: skip
def test_an_optimizer_says_how_many_steps_it_has_made(make, steps):
    net = nn.Dense(2, 2)
    optimizer = make(list(net.trainable_params()))
    for _ in range(2):
        optimizer(tuple(ops.ones_like(parameter) for parameter in net.trainable_params()))
    assert optimizer_of(net, optimizer).steps == steps


def test_a_name_may_exclude_a_parameter_from_decay():
    net = make_net()
    found = optimizer_of(net, nn.Adam(net.trainable_params(), 0.01, weight_decay=0.2, loss_scale=4.0))
    assert [(group.settings["weight_decay"], group.parameters) for group in found.groups] == [
        (0.2, ("0.weight", "0.bias", "3.weight", "3.bias")),
        (0.0, ("1.gamma", "1.beta")),
    ]
    assert found.defaults["loss_scale"] == 4.0
    assert found.defaults["lr"] == 0.01


@pytest.mark.parametrize("make", [nn.ExponentialDecayLR, nn.CosineDecayLR], ids=["exponential", "cosine"])
def test_a_schedule_is_told_with_its_settings(make):
    net = make_net()
    schedule = make(0.1, 0.9, 4) if make is nn.ExponentialDecayLR else make(0.01, 0.1, 4)
    (group,) = optimizer_of(net, nn.SGD(net.trainable_params(), schedule)).groups
    assert group.settings["lr"].endswith(make.__name__)
    assert group.settings["lr.decay_steps"] == 4


def test_a_list_of_learning_rates_is_told_by_its_digest():
    net = make_net()
    settings = []
    for last in (0.1, 0.1, 0.3):
        optimizer = nn.Momentum(net.trainable_params(), [0.3, 0.2, last], 0.9)
        found = MindSporeRig().framework.optimizers_of([Model("", nn.TrainOneStepCell(net, optimizer))])
        (group,) = next(each for each in found if each.type.endswith("Momentum")).groups
        settings.append(group.settings["lr.learning_rate"])
    assert settings[0].startswith("3 numbers, ")
    assert settings[0] == settings[1] != settings[2]


@pytest.mark.parametrize("make", [optim.AdamW, mint.optim.AdamW, optim.SGD], ids=["AdamW", "mint AdamW", "SGD"])
def test_groups_of_the_other_optimizers(make):
    net = make_net()
    parameters = net.trainable_params()
    optimizer = make([{"params": parameters[:2], "lr": 0.3}, {"params": parameters[2:]}], lr=0.01, weight_decay=0.1)
    found = optimizer_of(net, optimizer)
    assert found.type == f"{make.__module__}.{make.__qualname__}"
    assert [group.settings["lr"] for group in found.groups] == [0.3, 0.01]
    assert [group.settings["weight_decay"] for group in found.groups] == [0.1, 0.1]
    assert found.groups[0].parameters == ("0.weight", "0.bias")
    assert found.defaults["weight_decay"] == 0.1


# --- recordings -------------------------------------------------------------------------------------------------------


def by_one_step(net, optimizer, scale=None):
    inner = nn.WithLossCell(net, nn.MSELoss())
    train = nn.TrainOneStepCell(inner, optimizer) if scale is None else scale(inner, optimizer)
    train.set_train()
    return train


@pytest.mark.slow
@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["dynamic", "static"])
def test_a_recorded_training_has_one_and_computes_the_same(recorded, caplog, mode):
    """With the optimizer that steps, the rows of the data, and no complaint."""
    ms.set_context(mode=mode)
    try:
        with caplog.at_level(logging.WARNING):
            trained = []
            for is_recorded in (True, False):
                net = make_net()
                train = by_one_step(net, nn.Adam(net.trainable_params(), 0.01))
                steps = [lambda step=step, train=train: train(*batch(step)).asnumpy() for step in range(3)]
                if is_recorded:
                    manifest, directory, losses = recorded(net, steps)
                else:
                    losses = [step() for step in steps]
                weights = [parameter.asnumpy().tobytes() for parameter in net.trainable_params()]
                trained.append(([loss.tobytes() for loss in losses], weights))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert trained[0] == trained[1]
    assert not [record for record in caplog.records if record.name.startswith("msprobe")]
    assert manifest.notes == ()
    assert manifest.run.switches["mode"] == ("GRAPH" if mode == ms.GRAPH_MODE else "PYNATIVE")
    (optimizer,) = manifest.run.optimizers
    assert optimizer.defaults["trainer"].endswith("TrainOneStepCell")
    assert optimizer.defaults["sens"] == 1.0
    assert [(rows.name, rows.count, rows.step) for rows in manifest.data] == [("args.0", 4, 0)]
    pending = MindSporeRig().framework.row_hashes(batch(0)[0])
    assert manifest.data[0].rows == tuple(f"{each:016x}" for each in pending.hashes())
    later = read_data_rows(directory.parents[1] / "step1" / directory.name)
    assert [rows.step for rows in later] == [1]
    assert find_manifest(directory.parents[1] / "step1" / directory.name) == directory / "manifest.json"


def test_scaling_of_the_loss_is_told():
    """The Cell needs operators that only Ascend has, so no step is made."""
    net = make_net()
    manager = nn.FixedLossScaleUpdateCell(loss_scale_value=512)
    train = by_one_step(
        net,
        nn.SGD(net.trainable_params(), 0.1),
        lambda inner, optimizer: nn.TrainOneStepWithLossScaleCell(inner, optimizer, scale_sense=manager),
    )
    (optimizer,) = MindSporeRig().framework.optimizers_of([Model("", train)])
    assert optimizer.defaults["trainer"].endswith("TrainOneStepWithLossScaleCell")
    assert optimizer.defaults["scale_sense"] == 512.0
    assert optimizer.defaults["loss_scaling"].endswith("FixedLossScaleUpdateCell")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_an_optimizer_inside_of_a_compiled_function_is_found(recorded, level):
    net = make_net()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    inner = nn.WithLossCell(net, nn.MSELoss())

    def loss_of(x, y):
        return inner(x, y)

    gradients_of = ms.value_and_grad(loss_of, None, optimizer.parameters)

    @ms.jit
    def step(x, y):
        loss, gradients = gradients_of(x, y)
        return ops.depend(loss, optimizer(gradients))

    manifest, _, _ = recorded(net, [lambda: step(*batch(0)).asnumpy()], level=level)
    assert [each.type.rpartition(".")[2] for each in manifest.run.optimizers] == ["Momentum"]


def test_only_optimizers_that_step_are_told_if_any_does(recorded):
    net = make_net()
    unused = nn.Adam(net.trainable_params(), 0.01)
    train = by_one_step(net, nn.SGD(net.trainable_params(), 0.1))
    manifest, _, _ = recorded(net, [lambda: train(*batch(0)).asnumpy()])
    assert [each.type.rpartition(".")[2] for each in manifest.run.optimizers] == ["SGD"]
    assert unused.parameters


def test_equal_integer_ids_have_the_hashes_that_any_framework_computes():
    """Of rows [1, 2, 3] and [50000, 0, -7], worked out with Python's integers."""

    def mix(word):
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
        return word ^ (word >> 31)

    rows = [[1, 2, 3], [50000, 0, -7]]
    expected = [sum(mix((id_ + 0x9E3779B97F4A7C15 * (i + 1)) % 2**64) for i, id_ in enumerate(row)) for row in rows]
    for dtype in (np.int64, np.int32):
        pending = MindSporeRig().framework.row_hashes(Tensor(np.array(rows, dtype)))
        assert list(pending.hashes()) == [total % 2**64 for total in expected]
    assert expected[0] % 2**64 == 0xEDBE5CA3654F5804


def test_the_error_of_an_operator_that_fails_late_reaches_the_training_with_a_manifest(tmp_path):
    script = Path(__file__).parents[2] / "support/mindspore_late_error.py"
    run = subprocess.run([sys.executable, str(script), str(tmp_path), "L0"], capture_output=True, text=True)
    assert run.stdout.startswith("RuntimeError For 'GatherD'"), run.stdout + run.stderr
    assert len(list(tmp_path.rglob("manifest.json"))) == 1


def test_a_thousand_cells_are_described_in_time():
    import time

    net = nn.CellList([nn.SequentialCell(nn.Dense(4, 4), nn.LayerNorm((4,))) for _ in range(700)])
    framework = MindSporeRig().framework
    framework.run_facts([])
    begin = time.perf_counter()
    (model,) = framework.run_facts([Model("", net)]).models
    seconds = time.perf_counter() - begin
    print(f"\n{len(model.modules)} Cells: {seconds * 1e3:.1f} ms")
    assert len(model.modules) == 2101
