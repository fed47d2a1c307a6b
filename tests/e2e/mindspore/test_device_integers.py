"""Integers on a device without float64; MindSpore's CPU computes what such a device would."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from msprobe.mindspore._reduce import MindSporeReducer

from msprobe_core.plugin import Digest

RANDOM = np.random.default_rng(5)
LIMITS = np.iinfo(np.int64)
EXACT = {
    "token ids": RANDOM.integers(150_000, size=(8, 4096)),
    "positions": np.arange(1 << 15, dtype=np.int32),
    "mask": RANDOM.random(999) > 0.3,
    "bytes": RANDOM.integers(256, size=999, dtype=np.uint8),
    "beyond float32": np.array([(1 << 24) + 1, 1, -(1 << 30) - 1]),
}
WRAPPED = {
    "seeds": RANDOM.integers(LIMITS.max, size=7),
    "extremes": np.array([LIMITS.max, LIMITS.min, LIMITS.min]),
}


@pytest.mark.parametrize("name", [*EXACT, *WRAPPED])
def test_integers_are_summed_exactly_by_a_device_without_float64(monkeypatch, name):
    monkeypatch.setattr("msprobe.mindspore._deferred_digests.is_host", lambda: False)
    values = Tensor((EXACT | WRAPPED)[name])
    digests = Digest(), Digest()
    for digest, defers in zip(digests, (True, False), strict=True):
        reducer = MindSporeReducer(defers=defers)
        reducer.statistics(values, digest)
        reducer.collect()
    late, host = (digest.stats for digest in digests)
    tolerance = 1e-6 * host.l2_norm if name in WRAPPED else 0
    assert (late.max, late.min, late.num_nan, late.num_inf) == (host.max, host.min, 0, 0)
    assert type(late.max) is type(host.max) is (bool if values.dtype == ms.bool_ else int)
    assert late.mean == pytest.approx(host.mean, abs=tolerance, rel=0)
    assert late.l2_norm == pytest.approx(host.l2_norm, abs=tolerance, rel=1e-15)
