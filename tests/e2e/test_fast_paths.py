"""PyTorch computes in another way where it finds hooks or a function mode: it finds none of ours."""

import itertools
import types

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn

NUM_HEADS, WIDTH, LENGTH, BATCH = 4, 16, 6, 3


def encoder(*, batch_first, norm_first, nested):
    return nn.TransformerEncoder(layer(batch_first=batch_first, norm_first=norm_first), 2, enable_nested_tensor=nested)


def layer(*, batch_first, norm_first):
    return nn.TransformerEncoderLayer(WIDTH, NUM_HEADS, 2 * WIDTH, batch_first=batch_first, norm_first=norm_first)


class SelfAttention(nn.Module):
    def __init__(self, *, batch_first, need_weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, NUM_HEADS, batch_first=batch_first)
        self.need_weights = need_weights

    def forward(self, x, mask, src_key_padding_mask):
        output, weights = self.attention(
            x, x, x, attn_mask=mask, key_padding_mask=src_key_padding_mask, need_weights=self.need_weights
        )
        return output if weights is None else torch.cat([output.flatten(), weights.flatten()])


def padding(kind):
    padded = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    if kind == "right":
        padded[1, 4:] = True
    elif kind == "left":
        padded[1, :2] = True
    elif kind == "a whole row":
        padded[1], padded[2, 3:] = True, True
    return None if kind == "none" else padded


CONTEXTS = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
PADDINGS = ("none", "right", "left", "a whole row")
BUILDERS = {
    "encoder": [(encoder, {"nested": nested}) for nested in (True, False)],
    "layer": [(layer, {})],
    "attention": [(SelfAttention, {})],
}


def variants(kind):
    for (build, options), batch_first, other in itertools.product(BUILDERS[kind], (True, False), (True, False)):
        torch.manual_seed(0)
        name = "need_weights" if build is SelfAttention else "norm_first"
        model = build(batch_first=batch_first, **{name: other}, **options).eval()
        x = torch.randn((BATCH, LENGTH, WIDTH) if batch_first else (LENGTH, BATCH, WIDTH))
        yield model, x, f"{options} batch_first={batch_first} {name}={other}"


def result(model, x, context, mask, padded):
    """Return the output, or what is raised: some combinations are refused."""
    with CONTEXTS[context]():
        try:
            return model(x, mask, src_key_padding_mask=padded).detach().float()
        except (AssertionError, RuntimeError) as error:
            return str(error)


def is_same(found, expected):
    if isinstance(found, str) or isinstance(expected, str):
        return found == expected
    return found.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of nested tensors, and of variants that do not use them
def test_transformers_in_evaluation_take_the_path_that_they_took(kind, level, tmp_path, close_debugger):
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    num_compared, different = 0, []
    for model, x, name in variants(kind):
        calls = [
            (context, mask, kind_of_padding)
            for context, mask, kind_of_padding in itertools.product(CONTEXTS, (True, False), PADDINGS)
        ]

        def results(model=model, x=x, calls=calls):
            causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
            return [result(model, x, context, causal if mask else None, padding(how)) for context, mask, how in calls]

        expected = results()
        assert all(map(is_same, results(), expected))  # without the probe
        with debugger.start(model):
            found = results()
        num_compared += len(calls)
        different += [(name, *call) for call, *pair in zip(calls, found, expected, strict=True) if not is_same(*pair)]
    assert different == []
    assert num_compared >= 128


def test_a_fused_layer_is_recorded_from_outside(tmp_path, close_debugger):
    model = encoder(batch_first=True, norm_first=False, nested=False).eval()
    with torch.no_grad(), PrecisionDebugger(dump_path=tmp_path / "run", level="mix").start(model):
        model(torch.randn(BATCH, LENGTH, WIDTH))
    recorded = Recorded(tmp_path / "run")
    construct = recorded.json("construct.json")
    for i in range(2):
        entry = f"Module.layers.{i}.TransformerEncoderLayer.forward.0"
        assert "Max" in recorded.data[entry]["output"][0]
        assert construct[f"Torch._transformer_encoder_layer_fwd.{i}.forward"] == entry
    assert not recorded.starting("Module.layers.0.linear1.")  # which the fused layer does not call


@pytest.mark.parametrize("check", ["has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"])
def test_copies_of_such_layers_get_the_answer_that_they_got(check, tmp_path, close_debugger):
    # A package of its own, which asks whether functions are overridden and takes another path if so.
    package = types.ModuleType("attention_of_others")
    arguments = "(x,)" if check == "has_torch_function" else "x"
    exec(
        f"import torch\ndef attend(x):\n    return x * (2 if torch.overrides.{check}({arguments}) else 3)",
        package.__dict__,
    )
    with PrecisionDebugger(dump_path=tmp_path / "run", level="L1").start():
        found = package.attend(torch.ones(1))
    assert found.item() == 3
    assert "Tensor.__mul__.0.forward" in Recorded(tmp_path / "run").data


def test_forwards_that_are_counted_stay_fused(tmp_path, close_debugger):
    torch.manual_seed(0)
    model, x = layer(batch_first=True, norm_first=True).eval(), torch.randn(BATCH, LENGTH, WIDTH)
    padded = padding("a whole row")
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padded)
        with PrecisionDebugger(dump_path=tmp_path / "run", level="L0").start(model, token_range=[1, 1]):
            found = [model(x, src_key_padding_mask=padded) for _ in range(2)]
    assert [one.numpy().tobytes() for one in found] == [expected.numpy().tobytes()] * 2
    assert list(Recorded(tmp_path / "run").data) == ["Module.TransformerEncoderLayer.forward.0"]


# --- arguments ----------------------------------------------------------------------------------------------------


def weighted_loss():
    torch.manual_seed(0)
    x = torch.randn(8, requires_grad=True)
    loss = nn.functional.l1_loss(x, torch.zeros(8), weight=torch.arange(8.0))
    loss.backward()
    return [loss.detach(), x.grad]


def chained_product():
    torch.manual_seed(0)
    result = torch.zeros(2, 5)
    torch.chain_matmul(torch.randn(2, 3), torch.randn(3, 4), torch.randn(4, 5), out=result)
    return [result]


def order_of_dimensions():
    try:
        return [torch.tensor(torch.empty(1, 2, 3, 4).dim_order(ambiguity_check=True))]
    except RuntimeError as error:
        return [torch.tensor(list(str(error).encode()))]


@pytest.mark.parametrize("call", [weighted_loss, chained_product, order_of_dimensions])
@pytest.mark.filterwarnings("ignore:.*chain_matmul is deprecated")
def test_arguments_arrive_that_pytorch_hands_to_no_mode(call, tmp_path, close_debugger):
    try:
        expected = call()
    except TypeError as error:
        pytest.skip(f"this release has no such argument: {error}")
    with PrecisionDebugger(dump_path=tmp_path / "run", level="L1").start():
        found = call()
    assert [tensor.tolist() for tensor in found] == [tensor.tolist() for tensor in expected]
