"""What the training monitor computes from elements, in operators that tensors of all frameworks have: MindSpore's."""

import math

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import nn  # noqa: E402
from msprobe.mindspore._framework import MindSporeFramework  # noqa: E402

from msprobe_core.monitor.directions import agreement_of  # noqa: E402
from msprobe_core.monitor.layer_features import (  # noqa: E402
    attention_columns,
    logits_of,
    router_entropy,
    router_similarity,
    spectral_columns,
    spectrum_of,
)
from msprobe_core.monitor.sampled_elements import sampled  # noqa: E402
from msprobe_core.monitor.updates import columns_of, sums_of  # noqa: E402
from msprobe_core.plugin import MeasuringFramework  # noqa: E402

RANDOM = np.random.default_rng(0)


def tensor(array, dtype=ms.float32):
    return ms.Tensor(np.asarray(array, np.float32), dtype)


def fetched(numbers):
    return {column: float(number.asnumpy()) for column, number in numbers.items()}


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize(("dtype", "bits"), [(ms.float32, None), (ms.bfloat16, 7)], ids=["float32", "bfloat16"])
def test_updates(dtype, bits):
    before, after = (tensor(RANDOM.standard_normal(200), dtype) for _ in range(2))
    old, new = (each.float().asnumpy().astype(np.float64) for each in (before, after))
    found = columns_of(fetched(sums_of(before, after, bits)), scale=1.0, num_rounded=1)
    squares = ((new - old) ** 2).sum()
    assert found["norm"] == pytest.approx(math.sqrt(squares), rel=1e-5)
    assert found["ratio"] == pytest.approx(math.sqrt(squares) / np.linalg.norm(old), rel=1e-5)
    rounding = 0 if bits is None else ((2.0 ** (np.floor(np.log2(np.abs(new))) - bits)) ** 2).sum() / 12
    assert found["norm_debiased"] == pytest.approx(math.sqrt(squares - rounding), rel=1e-5)


def test_directions():
    one, other = (RANDOM.standard_normal(100) for _ in range(2))
    expected = (np.sum(np.sign(one) * np.sign(other)) / 100 + 1) / 2
    assert float(agreement_of(tensor(one), tensor(other)).asnumpy()) == pytest.approx(expected, abs=1e-6)


def test_features_of_matrices():
    matrix = RANDOM.standard_normal((40, 24))
    found = spectral_columns(fetched(spectrum_of(tensor(matrix))))
    assert found["kernel_norm"] == pytest.approx(np.linalg.norm(matrix, 2), rel=3e-3)
    units = matrix.T / np.linalg.norm(matrix.T, axis=1, keepdims=True)
    expected = (units @ units.T)[np.triu_indices(24, 1)].mean()
    assert fetched(router_similarity(tensor(matrix)))["router_weight_similarity"] == pytest.approx(expected, abs=1e-6)


def test_features_of_calls():
    query, key = RANDOM.standard_normal((6, 2, 4, 8)), RANDOM.standard_normal((6, 2, 2, 8))
    scores = np.einsum("shd,thd->hst", query[:, 0], key[:, 0].repeat(2, 1)) / math.sqrt(8)
    shares = softmax(np.where(np.triu(np.ones((6, 6)), 1) > 0, -np.inf, scores))
    entropies = -np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1)), 0).sum(-1).mean(1)
    found = fetched(attention_columns(tensor(query), tensor(key), "s,b,h,d"))
    assert found["entropy"] == pytest.approx(entropies[0], rel=1e-5)
    assert found["entropy_lowest"] == pytest.approx(entropies.min(), rel=1e-5)
    assert found["softmax_max"] == pytest.approx(shares[0].max(-1).mean(), rel=1e-5)
    tokens, weight = RANDOM.standard_normal((10, 16)), RANDOM.standard_normal((4, 16))
    shares = softmax(tokens @ weight.T)
    logits = logits_of([tensor(tokens)], [], tensor(weight), None)
    found = fetched(router_entropy(logits))["per_token_expert_entropy"]
    assert found == pytest.approx(-(shares * np.log(shares)).sum(-1).mean(), rel=1e-5)


def test_elements():
    framework = MindSporeFramework()
    assert isinstance(framework, MeasuringFramework)
    values = RANDOM.standard_normal((20, 10))
    (found,) = sampled(framework, [tensor(values)], 70)
    np.testing.assert_allclose(found.asnumpy(), values.ravel()[::3], rtol=1e-6)
    smallest, third = framework.kth_smallest(found, [1, 3])
    ordered = np.sort(values.ravel()[::3])
    assert [float(smallest.asnumpy()), float(third.asnumpy())] == pytest.approx([ordered[0], ordered[2]], rel=1e-6)
    for odd in (ms.Tensor([True]), ms.Tensor(np.zeros(0, np.float32)), ms.Tensor([1j], ms.complex64), 3.0):
        assert framework.elements(odd) is None
    assert framework.sampled([tensor(values), tensor(values.T)], 1) is None
    net = nn.SequentialCell(nn.Dense(2, 3), nn.ReLU())
    assert list(framework.modules_of(net)) == ["", "0", "1"]
    optimizer = nn.SGD([net[0].weight], 0.1)
    masters = framework.masters_of(optimizer, [net[0].weight, net[0].bias])
    assert masters[0] is net[0].weight
    assert masters[1] is None
