"""Checks of every call of a MindSpore dump: wrong kernels are found without a second run, healthy calls are right."""

import mindspore as ms
import numpy as np
import pytest
from cyclic_garbage import left_by
from mindspore import Tensor, mint, ops
from mindspore_checked import record, record_call

from msprobe_core.api_check.dump_check import CheckOptions, check_dump
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.cli import main
from msprobe_core.model import ReplayCall, ReplayTensor

ms.runtime.launch_blocking()


def verdicts(dump):
    return {found.entry: found for found in check_dump(dump, CheckOptions(), workers=0)}


HEALTHY = [
    ("convolutions", ms.float32), ("convolutions", ms.float16), ("mint", ms.float32), ("mint", ms.bfloat16),
    *(
        pytest.param(name, dtype, marks=pytest.mark.slow)
        for name, dtype in (
            ("cells", ms.float32), ("cells", ms.float16), ("experts", ms.float32), ("experts", ms.float16),
            ("experts", ms.bfloat16), ("mint", ms.float16), ("recurrent", ms.float32), ("recurrent", ms.float16),
        )
    ),
]  # fmt: skip
"""Not those in bfloat16 that need products, convolutions or gathers in it, which the CPU does not have."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), HEALTHY, ids=str)
def test_healthy_calls_are_right(name, dtype, tmp_path):
    found = verdicts(record(name, tmp_path / "dump", dtype))
    assert {entry: str(each.worst) for entry, each in found.items() if each.verdict is Verdict.WRONG} == {}
    told = [each for each in found.values() if not each.entry.startswith("Primitive.")]
    assert sum(each.verdict is Verdict.RIGHT for each in told) >= 0.95 * len(told) > 20


X = np.random.default_rng(40).standard_normal((6, 8)).astype(np.float32)


def train():
    def loss(x):
        hidden = mint.nn.functional.silu(mint.matmul(x, x.T))
        return ops.softmax(hidden, -1).square().sum() + ops.gelu(hidden).mean()

    ms.grad(loss)(Tensor(X))


def test_no_tensor_waits_for_the_garbage_collector(tmp_path):
    dump = record_call(train, tmp_path / "dump", level="L1")
    left = left_by(lambda: verdicts(dump))
    assert [each for each in left if isinstance(each, ReplayCall | ReplayTensor | Tensor)] == []


FAULTS = {
    "Functional.gelu.0": lambda y: y * 1.001,
    "Functional.softmax.0": lambda y: y.astype(ms.float16).astype(ms.float32),
}


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("api", FAULTS)
def test_a_wrong_result_is_the_only_wrong_call(api, phase, tmp_path):
    dump = record_call(train, tmp_path / "dump", level="L1")
    entry = f"{api}.{phase}"
    file = dump / "dump_tensor_data" / f"{entry}.output.0.npy"
    np.save(file, FAULTS[api](Tensor(np.load(file))).asnumpy())
    assert [name for name, each in verdicts(dump).items() if each.verdict is Verdict.WRONG] == [entry]


def test_a_wrong_kernel_is_wrong_in_forward_and_backward(tmp_path):
    """A kernel whose approximation is coarse; so is its derivative."""
    gelu = ops.gelu
    code, defaults = gelu.__code__, gelu.__defaults__
    try:
        # Its code is exchanged, so that whatever calls it by whatever name calls the wrong one.
        gelu.__code__, gelu.__defaults__ = _coarse.__code__, _coarse.__defaults__
        gelu.__globals__["_sigmoid_of_the_test"] = ops.sigmoid
        dump = record_call(train, tmp_path / "dump", level="L1")
    finally:
        gelu.__code__, gelu.__defaults__ = code, defaults
        gelu.__globals__.pop("_sigmoid_of_the_test", None)
    wrong = [name for name, each in verdicts(dump).items() if each.verdict is Verdict.WRONG]
    assert wrong == ["Functional.gelu.0.forward", "Functional.gelu.0.backward"]


def _coarse(input, approximate="none"):  # noqa: A002
    return input * _sigmoid_of_the_test(1.702 * input)  # noqa: F821


def test_the_command_checks_a_dump_of_mindspore(tmp_path):
    dump = record_call(train, tmp_path / "dump", level="L1")

    def status():
        with pytest.raises(SystemExit) as ended:
            main(["acc_check", "-api_info", str(dump / "dump.json"), "-o", str(tmp_path / "out"), "-n", "0"])
        return ended.value.code

    assert status() == 0
    (details,) = (tmp_path / "out").glob("accuracy_checking_details_*.csv")
    header, first, *_ = details.read_text().splitlines()
    assert header == "API Name,Bench Dtype,Tested Dtype,Shape,Cosine,MaxAbsErr,MaxRelativeErr,Status,Message"
    assert first.split(",")[1:3] == ["Float64", "Float32"]
    file = dump / "dump_tensor_data" / "Mint.matmul.0.forward.output.0.npy"
    np.save(file, np.load(file) + np.float32(0.01))
    assert status() == 1
