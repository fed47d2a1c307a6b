"""Updates, directions, features and percentiles of a MindSpore training, which stays the same."""

import json

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Tensor, nn  # noqa: E402
from mindspore_rig import dense  # noqa: E402
from msprobe.mindspore._framework import MindSporeFramework  # noqa: E402

from msprobe_core.monitoring.files import read_monitored  # noqa: E402
from msprobe_core.plugin import MonitoringFramework  # noqa: E402
from msprobe_core.recording import TrainerMon  # noqa: E402

SETTINGS = {
    **dict.fromkeys(
        ("xy_distribution", "wg_distribution", "ur_distribution", "mg_direction", "recording_l2_features",
         "print_struct", "stack_info"), True,
    ),
    "ops": ["norm", "zeros", "p50", "fp16_underflow", "fp8_underflow"],
    "l2_targets": {"linear_hook": ["0", "2"], "moe_router_weight_hook": ["2"], "moe_router_logit_hook": ["2"]},
    "ndigits": 14,
}  # fmt: skip


NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def train(directory=None):
    random = np.random.RandomState(0)
    net = nn.SequentialCell(dense(8, 6, random), nn.ReLU(), dense(6, 3, random)).set_train()
    optimizer = nn.Adam(net.trainable_params(), learning_rate=1e-2)
    monitor = None
    if directory is not None:
        (directory / "monitor.json").write_text(json.dumps(SETTINGS))
        monitor = TrainerMon(directory / "monitor.json")
        monitor.set_monitor(net, optimizer)
    function = ms.value_and_grad(lambda x: net(x).square().mean(), None, net.trainable_params())
    losses, values = [], [[parameter.asnumpy().copy() for parameter in net.trainable_params()]]
    for _ in range(3):
        loss, gradients = function(Tensor(random.normal(size=(4, 8)).astype(np.float32)))
        optimizer(gradients)
        losses.append(float(loss.asnumpy()).hex())
        values.append([parameter.asnumpy().copy() for parameter in net.trainable_params()])
    if monitor is not None:
        monitor.close()
    return losses, values


@pytest.mark.skipif(not isinstance(MindSporeFramework(), MonitoringFramework), reason="this plugin cannot be monitored")
def test_a_training_stays_the_same_and_its_quantities_are_those_of_its_values(tmp_path, monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    bare, (losses, values) = train(), train(tmp_path)
    assert losses == bare[0]
    assert [each.tobytes() for each in values[-1]] == [each.tobytes() for each in bare[1][-1]]
    frame = read_monitored(tmp_path / "out").frame
    for step in range(3):
        rows = {each["name"]: each for each in frame.filter(quantity="update", step=step).to_dicts()}
        for name, before, after in zip(
            ("0.weight", "0.bias", "2.weight", "2.bias"), *values[step : step + 2], strict=True
        ):
            assert rows[name]["norm"] == pytest.approx(np.linalg.norm(after.astype(float) - before), rel=1e-5)
    (spectrum,) = frame.filter(quantity="linear_hook", name="2.linear", step=1).to_dicts()
    assert spectrum["kernel_norm"] == pytest.approx(np.linalg.norm(values[1][2].astype(float), 2), rel=3e-3)
    (coverage,) = (tmp_path / "out").glob("*/coverage.json")
    assert all(each["expected"] in (None, each["seen"]) for each in json.loads(coverage.read_text()).values())
    struct = json.loads((tmp_path / "out" / "module_struct" / "rank0" / "module_struct.json").read_text())
    assert struct["0:2"]["output_grad"] == {"config": "tuple[1]", "0": "size=(4, 3), dtype=Float32"}
