"""What there is no reference of a fused operator for is refused, with the reason."""

import pytest
import torch
from msprobe.pytorch import _replay
from replaying import call_of, replay

from msprobe_core.plugin import ReplayError

B, N, S, T, D = 2, 4, 5, 7, 6


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def qkv():
    return [randn(B, heads, length, D) for heads, length in ((N, S), (2, T), (2, T))]


def triangle():
    return torch.ones(2048, 2048, dtype=torch.bool).triu(1)


REFUSED = {
    "dropout": ({"keep_prob": 0.9}, "random numbers"),
    "sink": ({"sink": torch.zeros(N)}, "with sink"),
    "padding_mask": ({"padding_mask": torch.zeros(2)}, "with padding_mask"),
    "layout": ({"input_layout": "NSD"}, "layout 'NSD'"),
    "sparse mode": ({"atten_mask": triangle(), "sparse_mode": 7}, "sparse_mode 7"),
    "no triangle": ({"atten_mask": ~triangle(), "sparse_mode": 2}, "stands for a triangle"),
    "small triangle": ({"atten_mask": triangle()[:S, :T], "sparse_mode": 3}, "stands for a triangle"),
    "mask of another shape": ({"atten_mask": triangle()}, "its mask has the shape"),
    "nothing to attend to": ({"atten_mask": torch.ones(S, T, dtype=torch.bool)}, "attend to nothing"),
    "heads": ({"head_num": 3}, "heads"),
    "compressed pse": ({"pse": torch.zeros(1, N, 2, T).double()}, "pse of the shape"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    options, reason = REFUSED[case]
    with pytest.raises(ReplayError, match=reason):
        replay("NPU.npu_fusion_attention", *qkv(), **{"head_num": N, "input_layout": "BNSD", **options})


@pytest.mark.parametrize("ends", [[3, 5], [3, 2, 9], [-1, 3, 9], [], [10, 9], [3, 5, 9, 0]], ids=str)
def test_sequences_that_do_not_add_up(ends):
    packed = randn(9, N, D), randn(9, N, D), randn(9, N, D)
    with pytest.raises(ReplayError, match="add up"):
        replay("NPU.npu_fusion_attention", *packed, N, "TND", actual_seq_qlen=ends, actual_seq_kvlen=ends)


def test_other_refusals():
    x = randn(2, 3, 6)
    for name, args, kwargs, reason in (
        ("npu_rotary_mul", (x, x, x), {"rotary_mode": "quarter"}, "rotary_mode 'quarter'"),
        ("npu_swiglu", (x,), {"dim": 1}, "halved"),
        ("npu_scaled_masked_softmax", (x, x > 0), {"fixed_triu_mask": True}, "reserved"),
        ("npu_rms_norm", (x, randn(3)), {}, "gamma of the shape"),
        ("npu_group_norm_silu", (x, None, None, 2), {}, "groups"),
        ("npu_moe_gating_top_k_softmax", (x[0], None, 7), {}, "experts"),
        ("npu_cross_entropy_loss", (x[0], torch.tensor([0, 1, 2])), {"return_zloss": True}, "reserved"),
        ("npu_apply_adam", (0.9, 0.99, 0.1, 0.9, 0.99, 1e-8, x), {}, "out="),
        (
            "npu_apply_adam_w",
            (0.9, 0.99, 0.1, 0.0, 0.9, 0.99, 1e-8, x, None, True, False),
            {"out": [x, x, x]},
            "amsgrad",
        ),
    ):
        with pytest.raises(ReplayError, match=reason):
            replay(f"NPU.{name}", *args, **kwargs)


def test_names_that_are_not_there():
    for name in ("NPU.npu_format_cast", "NPU.load", "MindSpeed.npu_rms_norm"):
        reason = _replay.why_not_replayed(call_of(name, []).site)
        assert reason is not None
        assert "is not among" in reason
