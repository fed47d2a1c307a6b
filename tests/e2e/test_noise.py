"""Fault or rounding on real models: the noise of a golden run is measured, healthy runs pass, small faults do not."""

import math
from types import MethodType

import polars as pl
import pytest
import torch
import transformers
from in_kernel import InKernel
from msprobe.pytorch import PrecisionDebugger
from torch.nn import functional as F  # noqa: N812

from msprobe_core.calibrate import calibrate
from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.judge.noise import NoiseModel, load_noise
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.locate import LocateOptions, locate

SIZES = {"vocab_size": 128, "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4}
PLACE = {"llama": "model.layers.1.mlp.down_proj", "gpt2": "transformer.h.1.mlp.c_proj"}
NORM = {"llama": "model.layers.2.input_layernorm", "gpt2": "transformer.h.2.ln_1"}


def build(name, dtype):
    torch.manual_seed(0)
    if name == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, intermediate_size=96))
    else:
        config = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128, "n_positions": 32}
        off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, **off))
    return model.to(dtype).train()


def record(directory, model, dtype, record_task="statistics"):
    torch.manual_seed(1)
    tokens = torch.randint(2, 128, (2, 24))
    debugger = PrecisionDebugger(dump_path=str(directory), level="mix", task=record_task, step=[0])
    with debugger.start(model):
        model(input_ids=tokens, labels=tokens).loss.backward()
    debugger.step()
    debugger.close()
    return directory


def change(module, forward=torch.clone, backward=torch.clone):
    module.register_forward_hook(lambda *call: InKernel.apply(call[2], forward, backward))


def last_digits(seed):
    generator = torch.Generator().manual_seed(seed)

    def move(value):
        is_up = torch.randint(0, 2, value.shape, generator=generator).bool()
        bounds = torch.where(is_up, math.inf, -math.inf).to(value.dtype)
        return torch.nextafter(value, bounds)

    return move


class FromTheOtherEnd(torch.autograd.Function):
    """A linear layer whose sums run in two parts, each of them rounded, as two devices compute it."""

    @staticmethod
    def forward(context, value, weight, bias):
        context.save_for_backward(value, weight)
        context.has_bias = bias is not None
        with torch._C.DisableTorchFunction():
            parts = zip(value.chunk(2, -1), weight.chunk(2, -1), strict=True)
            second, first = (part @ own.t() for part, own in parts)
            return first + second if bias is None else first + second + bias

    @staticmethod
    def backward(context, gradient):
        value, weight = context.saved_tensors
        with torch._C.DisableTorchFunction():
            halves = zip(gradient.chunk(2, -1), weight.chunk(2, 0), strict=True)
            second, first = (part @ own for part, own in halves)
            rows = gradient.flatten(0, -2), value.flatten(0, -2)
            of_bias = rows[0].sum(0) if context.has_bias else None
            return first + second, rows[0].flip(0).t() @ rows[1].flip(0), of_bias


def with_other_kernels(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.forward = MethodType(lambda own, x: FromTheOtherEnd.apply(x, own.weight, own.bias), module)
        elif isinstance(module, transformers.pytorch_utils.Conv1D):
            module.forward = MethodType(lambda own, x: FromTheOtherEnd.apply(x, own.weight.t(), own.bias), module)
    return model


@pytest.fixture(scope="module", params=[("llama", "bfloat16"), ("gpt2", "float32")], ids="-".join)
def golden(request, tmp_path_factory):
    name, dtype = request.param[0], getattr(torch, request.param[1])
    root = tmp_path_factory.mktemp("golden")
    directory = record(root / "golden", build(name, dtype), dtype)
    for k in (1, 2, 3):
        model = build(name, dtype)
        change(model.get_input_embeddings(), last_digits(k))
        record(directory / "calibration" / f"run{k}", model, dtype)
    result = calibrate(directory)
    (dump,) = result.dumps
    assert dump.num_measured == dump.num_rows > 300
    assert dump.num_varying > 0.8 * dump.num_rows
    return name, dtype, directory


def compared(model, golden, path, noise=None):
    name, dtype, directory = golden
    del name
    target = record(path, model, dtype)
    options = CompareOptions(noise=load_noise(directory) if noise is None else noise)
    return compare_dumps(target, directory, options=options).units[0]


def scored_errors(unit):
    return unit.rows.filter((pl.col("score") > pl.col("score_limit")).fill_null(value=False))


def test_other_kernels_and_other_last_digits_are_within_the_noise(golden, tmp_path):
    for noise in (None, NoiseModel()):
        model = with_other_kernels(build(*golden[:2]))
        change(model.get_input_embeddings(), last_digits(7))
        unit = compared(model, golden, tmp_path / f"target{noise is None}", noise)
        assert unit.rows["score"].count() > 300
        assert scored_errors(unit).height == 0
        assert (unit.rows["score"] > 0.5).sum() > 100  # the two are different throughout


def test_a_scale_that_is_lost_in_the_distance_is_found_where_it_is(golden, tmp_path):
    name, dtype, _ = golden
    factor = 1.02 if dtype is torch.bfloat16 else 1.0001
    model = build(name, dtype)
    change(model.get_submodule(PLACE[name]), lambda value: value * factor)
    unit = compared(model, golden, tmp_path / "target")
    assert unit.fault is not None
    assert f".{PLACE[name]}." in unit.fault.entry
    assert unit.fault.is_culprit
    finding = unit.fault.findings[0][1]
    assert (finding.code, finding.fields["num_repeats"]) == (RowCode.SCORE, 3)


def test_a_scale_of_a_gradient_is_found_where_it_is(golden, tmp_path):
    name, dtype, _ = golden
    model = build(name, dtype)
    change(model.get_submodule(PLACE[name]), backward=lambda gradient: gradient * 1.03)
    unit = compared(model, golden, tmp_path / "target")
    assert unit.fault is not None
    assert f".{PLACE[name]}." in unit.fault.entry
    assert ".forward." not in unit.fault.entry  # the gradient that it passes on, or that of its parameters before it
    options = LocateOptions(compare=CompareOptions(noise=load_noise(golden[2])))
    assert locate(tmp_path / "target", golden[2], options).suspects[0].entry == unit.first_fault.entry


def test_another_epsilon_is_found_in_its_norm(golden, tmp_path):
    name, dtype, _ = golden
    model = build(name, dtype)
    norm = model.get_submodule(NORM[name])
    own = norm.forward
    kind = "variance_epsilon" if name == "llama" else "eps"

    def forward(value):
        epsilon = getattr(norm, kind)
        setattr(norm, kind, 1e-3)
        try:
            return own(value)
        finally:
            setattr(norm, kind, epsilon)

    norm.forward = forward
    unit = compared(model, golden, tmp_path / "target")
    found = scored_errors(unit)
    assert found.height > 0
    assert found["entry"].str.contains(f"{NORM[name]}.", literal=True).any()


@pytest.mark.slow
def test_a_wrong_activation_is_found_by_the_closed_form(golden, tmp_path):
    name, dtype, _ = golden
    model = build(name, dtype)
    block = PLACE[name].rpartition(".")[0]
    act = model.get_submodule(f"{block}.{'act_fn' if name == 'llama' else 'act'}")
    own = act.forward
    act.forward = lambda value: InKernel.apply(own(value), F.relu, torch.clone)
    unit = compared(model, golden, tmp_path / "target", NoiseModel())
    assert unit.fault is not None
    assert f".{block}." in unit.fault.entry
    assert unit.fault.findings[0][1].code is RowCode.SCORE_CLOSED_FORM
