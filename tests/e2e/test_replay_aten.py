"""Operators below the APIs, of the forward and of the backward, are replayed, and give what was recorded."""

import json

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger, _replay
from replaying import replay
from torch import nn
from torch.nn import functional

from msprobe_core.errors import ReplayError
from msprobe_core.replay.recorded import RecordedCalls
from msprobe_core.replay.replays import Replayer
from msprobe_core.store.reading import read_dump

MOST = 1 << 28


class Framework:
    replay = staticmethod(_replay.replay)


def record(place, run):
    path = place / "config.json"
    settings = {"task": "tensor", "level": "L1", "risk_level": "ALL", "aten": True, "dump_path": str(place / "dump")}
    path.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(str(path))
    try:
        with debugger.start():
            run()
    finally:
        debugger.close()
    (unit,) = place.glob("dump/step0/*")
    return RecordedCalls(read_dump(unit), MOST)


def transformer(dtype):
    """Embedding, attention with grouped heads, norms, activations, convolution, and a loss with weights."""
    torch.manual_seed(0)
    table = nn.Embedding(20, 16, padding_idx=3).to(dtype)
    norm, q, k, v = nn.LayerNorm(16).to(dtype), *(nn.Linear(16, size).to(dtype) for size in (16, 8, 8))
    conv = nn.Conv1d(16, 16, 3, padding=1, groups=2).to(dtype)
    head = nn.Linear(16, 20).to(dtype)

    def run():
        ids = torch.tensor([[1, 2, 3, 1, 5], [4, 3, 2, 9, 1]])
        x = norm(table(ids))
        heads = [layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (q, k, v)]
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + attended.transpose(1, 2).flatten(2)
        x = functional.gelu(x) + functional.silu(x) + torch.tanh(x) * torch.sigmoid(x) + functional.relu(x)
        x = conv(x.transpose(1, 2)).transpose(1, 2)
        weights = functional.softmax(x[:, 1:, ::2], -1) + functional.log_softmax(x[:, :-1, 1::2], -1)
        labels = torch.where(ids == 9, -100, ids)
        loss = functional.cross_entropy(head(x).flatten(0, 1), labels.flatten(), torch.linspace(0.5, 1, 20).to(dtype))
        (loss + weights.float().pow(2).mean()).backward()

    return run


def close(own, recorded, dtype):
    scale = max(float(abs(recorded).max(initial=0.0)), 1e-30)
    assert float(abs(own - recorded).max(initial=0.0)) <= (2e-6 if dtype == "float32" else 2e-2) * scale


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_operator_of_a_model(dtype, tmp_path):
    calls = record(tmp_path, transformer(dtype))
    names = [entry for entry in calls.entries if entry.startswith("Aten")]
    assert len(names) > 150
    backward = {entry.split(".")[1] for entry in names if entry.startswith("AtenBackward.")}
    assert {"native_layer_norm_backward", "embedding_dense_backward", "nll_loss_backward"} <= backward
    assert "_scaled_dot_product_flash_attention_for_cpu_backward" in backward
    assert {"convolution_backward", "_softmax_backward_data", "_log_softmax_backward_data"} <= backward
    for entry in names:
        call = calls.read(entry)
        assert _replay.why_not_replayed(call.site) is None, entry
        if call.missing is not None or not call.outputs:
            continue
        own = Replayer(call, Framework, None, MOST).plain.own
        for path, value in call.outputs.items():
            assert own[path].dtype == value.dtype, entry
            if value.values.dtype.kind == "f":
                close(own[path].values, value.values, value.dtype)
            else:
                assert (own[path].values == value.values).all(), entry


def test_wholly_masked_attention():
    found = replay("Aten._safe_softmax", torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]]), -1)
    assert found["0"].tolist() == [[0.5, 0.5], [0.0, 0.0]]


X = torch.arange(12.0).reshape(3, 4)
FAR = 1 << 40
HOSTILE = {
    "embedding_dense_backward": [X, torch.tensor([0, 1, FAR]), 5, -1, False],
    "embedding_dense_backward of a large table": [X, torch.tensor([0, 1, 2]), FAR, -1, False],
    "nll_loss_backward": [X[:, 0], X, torch.tensor([0, 1, FAR]), None, 0, -100, X[0, 0]],
    "nll_loss_backward of too few gradients": [X[:1, 0], X, torch.tensor([0, 1, 2]), None, 0, -100, X[0, 0]],
    "nll_loss_forward": [X, torch.tensor([0, 1, FAR]), None, 1, -100],
    "_softmax_backward_data": [X, X[:2], -1, torch.float32],
    "_log_softmax_backward_data": [X[:2], X, -1, torch.float32],
    "native_layer_norm_backward": [X, X, [4], X[:2, :1], X[:, :1], None, None, [True, True, True]],
    "select_backward": [X[0], [3, 4], 0, FAR],
    "slice_backward": [X, [FAR, 4], 0, 0, 3, 1],
    "convolution_backward": [X[None], X[None], X[None, :, :2], None, [1], [0], [1], False, [0], 1, [True, True, False]],
    "index": [X, [torch.tensor([FAR])]],
    "as_strided": [X, [FAR], [0]],
    "set_": [X, X],
    "_unsafe_index": [X, [torch.tensor([FAR])]],
    "max_pool2d_with_indices_backward": [X, X, [2], [2], [0], [1], False, torch.tensor([FAR])],
    "full": [[1 << 20, 1 << 20], 1.0],
    "_grouped_mm": [X, X.t().expand(2, 4, 3), torch.tensor([1, 1 << 30], dtype=torch.int32)],
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("prefix", ["Aten", "AtenBackward"])
def test_operators_with_arguments_made_for_harm(prefix, case):
    with pytest.raises(ReplayError):
        replay(f"{prefix}.{case.split()[0]}", *HOSTILE[case])
