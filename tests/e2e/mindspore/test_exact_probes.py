"""Exact probes of MindSpore's kernels on the CPU, and which of its functions are linear."""

import numpy as np
import pytest
from msprobe.mindspore._framework import MindSporeFramework
from msprobe.mindspore._replay_table import linear_in

from msprobe_core.api_check.exact_probes import ExactProber
from msprobe_core.api_check.probe_codes import ProbeCode
from msprobe_core.model import LinearKind, ReplayTensor
from msprobe_core.names import parse_entry
from msprobe_core.replay.recorded import RecordedCall

CALLS = {
    "Mint.matmul": ((8, 300), (300, 7)),
    "Functional.matmul": ((8, 300), (300, 7)),
    "MintFunctional.linear": ((8, 300), (7, 300)),
    "Mint.sum": ((3000,),),
    "Tensor.sum": ((3000,),),
}


@pytest.mark.parametrize("api", CALLS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_healthy_kernels_are_exact(api, dtype):
    entry = f"{api}.0.forward"
    args = [ReplayTensor(values=np.zeros(shape, np.float32), dtype=dtype) for shape in CALLS[api]]
    found = ExactProber(framework=MindSporeFramework()).probe(
        RecordedCall(entry=entry, site=parse_entry(entry), args=args)
    )
    assert found.code is ProbeCode.EXACT, found.text


def test_linear_functions():
    assert linear_in("matmul") is linear_in("sum_ext") is LinearKind.SUM
    assert linear_in("mean_ext") is LinearKind.MEAN
    assert linear_in("exp") is None
