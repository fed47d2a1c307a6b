"""How much memory judging a large output takes, beyond the replays that it is judged by."""

import tracemalloc

import numpy as np
import pytest

from msprobe_core.model import ReplayTensor
from msprobe_core.replay.judge import judge_outputs
from msprobe_core.replay.replays import Replays


@pytest.mark.parametrize(("num_disturbed", "most"), [(0, 11), (1, 13), (4, 13)])
def test_it_does_not_grow_with_the_number_of_replays(num_disturbed, most):
    """In units of the recorded output, which is of float32; float64 is two of them."""
    random = np.random.default_rng(0)
    exact = random.normal(size=(512, 512))
    recorded = exact.astype(np.float32)
    replays = Replays(
        oracle={"output": ReplayTensor(values=exact, dtype="float64")},
        own={"output": ReplayTensor(values=recorded.copy(), dtype="float32")},
        disturbed=[
            {"output": ReplayTensor(values=exact * (1 + 6e-8 * random.normal(size=exact.shape)), dtype="float64")}
            for _ in range(num_disturbed)
        ],
        roundoff=2.0**-24,
        num_summed=1,
    )
    outputs = {"output": ReplayTensor(values=recorded, dtype="float32")}
    judge_outputs(outputs, replays)
    tracemalloc.start()
    try:
        judge_outputs(outputs, replays)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / recorded.nbytes < most
