"""Fused operators of torch_npu on a device: recorded under their names, the same to the bit, and checked.

The device and the module are stand-ins; see ``torch_npu_stand_in``.
"""

import device_fused
import device_programs
import pytest
import simulated_device
import torch
from device_programs import Fault

from msprobe_core.store.reading import read_dump

pytestmark = [
    pytest.mark.skipif(
        not simulated_device.has_python_devices(), reason="this PyTorch takes no device that is written in Python"
    ),
]

WITH_GRADIENTS = {
    "npu_fusion_attention", "npu_fusion_attention_v2", "fast_gelu", "npu_fast_gelu", "npu_gelu", "npu_silu",
    "npu_mish", "npu_swiglu", "npu_scaled_masked_softmax", "npu_rms_norm", "npu_cross_entropy_loss", "npu_linear",
    "npu_rotary_mul", "npu_confusion_transpose",
}  # fmt: skip


@pytest.fixture(scope="module")
def on_device():
    with simulated_device.device_process() as run:
        yield run


@pytest.fixture(scope="module")
def bare(on_device):
    return on_device(device_fused.train, None)


@pytest.fixture(scope="module")
def called(on_device, tmp_path_factory):
    """The dump of a call of each operator, and by what the host has waited meanwhile."""
    place = tmp_path_factory.mktemp("called")
    waits = on_device(device_fused.call_all, place)
    return next((place / "run" / "step0").iterdir()), waits


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "task", "mode"),
    [
        ("mix", "statistics", "hash"), slow("L0", "statistics", "statistics"), slow("L1", "statistics", "statistics"),
        slow("mix", "statistics", "statistics"), slow("L1", "statistics", "hash"), slow("mix", "tensor", None),
        slow("mix", "overflow_check", None),
    ],
)  # fmt: skip
def test_trainings_with_fused_operators(on_device, bare, tmp_path, level, task, mode):
    run = on_device(device_fused.train, tmp_path, level, task, {"summary_mode": mode} if mode else {})
    assert run.state == bare.state
    assert [wait.reason for wait in run.waits if wait.thread != "msprobe-writer"] == bare.waits == []
    assert run.unordered == []
    if task != "overflow_check":
        entries = set(read_dump(next((tmp_path / "run" / "step1").iterdir())).frame["entry"])
        assert {entry.split(".")[1] for entry in entries if entry.startswith("NPU.")} == (
            set() if level == "L0" else {
                "npu_rms_norm", "npu_rotary_mul", "npu_fusion_attention", "npu_swiglu", "npu_confusion_transpose",
                "npu_fast_gelu", "npu_silu", "npu_cross_entropy_loss", "npu_apply_adam_w",
            }
        )  # fmt: skip
        assert level == "L0" or "NPU.npu_rms_norm.1.backward" in entries


def test_formulas_take_the_arguments_that_torch_npu_declares(on_device):
    for name, (theirs, ours) in on_device(device_fused.declared).items():
        assert [each for each in ours if each != "out"] == theirs, name


def test_each_operator_is_recorded_under_its_name(called):
    dump, waits = called
    entries = set(read_dump(dump).frame["entry"])
    with_gradients = {entry.split(".")[1] for entry in entries if entry.startswith("NPU.") and ".backward" in entry}
    assert {entry.split(".")[1] for entry in entries if entry.startswith("NPU.") and ".forward" in entry} == {
        *device_fused.NAMES
    }
    assert with_gradients == WITH_GRADIENTS
    assert waits == []


@pytest.mark.slow
def test_each_operator_is_checked(on_device, called):
    found = on_device(device_programs.check, called[0])
    fused = {entry: verdict for entry, (verdict, _, _) in found.items() if entry.startswith("NPU.")}
    assert {entry.split(".")[1] for entry in fused} == {*device_fused.NAMES}
    assert {entry for entry, verdict in fused.items() if verdict not in ("right", "ill_conditioned")} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "operator", ["npu_rms_norm", slow("npu_fusion_attention"), slow("npu_swiglu"), slow("npu_apply_adam_w")]
)
def test_a_wrong_kernel_is_found(on_device, tmp_path, operator):
    on_device(device_fused.call_all, tmp_path, [Fault(operator, "first scaled")])
    found = on_device(device_programs.check, next((tmp_path / "run" / "step0").iterdir()))
    wrong = {entry for entry, (verdict, _, _) in found.items() if verdict == "wrong"}
    assert f"NPU.{operator}.0.forward" in wrong
    assert wrong <= {f"NPU.{operator}.0.forward", f"NPU.{operator}.0.backward"}  # which may take the wrong result


@pytest.mark.parametrize("kind", ["hash", "xor", "checksum"])
def test_bits_of_a_tensor_in_blocks_are_those_of_its_rows(on_device, kind):
    found = on_device(device_fused.reduced_in_blocks, kind)
    assert found.pop("format") == simulated_device.BLOCKS
    assert found == {view: {"same": True, "waits": []} for view in ("whole", "rows", "transposed")}


def test_files_of_a_tensor_in_blocks_have_its_rows(on_device, tmp_path):
    run = on_device(device_fused.recorded_in_blocks, tmp_path)
    assert [wait for wait in run.waits if wait.thread != "msprobe-writer"] == []
    (weight,) = (tmp_path / "run").rglob("Functional.linear.0.forward.input.1.pt")
    assert torch.load(weight).numpy().tobytes() == run.state["weight"]
    entries = read_dump(next((tmp_path / "run" / "step0").iterdir())).frame["entry"]
    assert not entries.str.contains("npu_format_cast").any()
