"""The pair of small Llamas is one model: both frameworks compute the same from the same weights."""

import mindspore as ms
import mindspore_llama
import numpy as np
import pytest
import torch
import torch_llama
from llama_config import FAULTY_MODULE, Fault, LlamaConfig, batch

CONFIG = LlamaConfig()
LARGEST_LOGIT_DIFFERENCE = 2e-5  # 5e-6 was measured, for logits up to 7
LARGEST_GRADIENT_DIFFERENCE = 2e-5  # relative to the largest element; 3e-6 was measured


@pytest.fixture(autouse=True)
def dynamic_graph():
    yield
    mindspore_llama.set_mode("pynative")


def torch_outputs(fault=None):
    """Return the logits and the gradients by parameter."""
    model = torch_llama.build(CONFIG, fault)
    tokens, labels = (torch.from_numpy(array).long() for array in batch(CONFIG))
    logits = model(tokens)
    torch_llama.loss_function(logits, labels).backward()
    return logits.detach().numpy(), {name: weight.grad.numpy() for name, weight in model.named_parameters()}


def mindspore_outputs(variant, fault=None):
    model = mindspore_llama.build(CONFIG, variant, fault)
    parameters = model.trainable_params()
    tokens, labels = (ms.Tensor(array) for array in batch(CONFIG))
    logits = model(tokens).asnumpy()
    _, gradients = ms.value_and_grad(mindspore_llama.WithLoss(model), None, parameters)(tokens, labels)
    return logits, {weight.name: gradient.asnumpy() for weight, gradient in zip(parameters, gradients, strict=True)}


@pytest.mark.parametrize(
    ("variant", "mode"),
    [("nn", "pynative"), ("mint", "pynative"), ("nn", "graph"), pytest.param("mint", "graph", marks=pytest.mark.slow)],
)
def test_both_compute_the_same(variant, mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mindspore_llama.set_mode(mode)
    golden_logits, golden_gradients = torch_outputs()
    logits, gradients = mindspore_outputs(variant)
    assert np.abs(logits - golden_logits).max() < LARGEST_LOGIT_DIFFERENCE
    assert len(gradients) == len(golden_gradients)
    for name, golden in golden_gradients.items():
        gradient = gradients[mindspore_llama.parameter_name(name, variant)]
        assert np.abs(gradient - golden).max() < LARGEST_GRADIENT_DIFFERENCE * np.abs(golden).max(), name


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value)
def test_a_fault_changes_both_alike(fault):
    mindspore_llama.set_mode("pynative")
    logits, _ = mindspore_outputs("nn", fault)
    assert np.abs(logits - torch_outputs()[0]).max() > 0.01
    assert np.abs(logits - torch_outputs(fault)[0]).max() < LARGEST_LOGIT_DIFFERENCE


@pytest.mark.parametrize("variant", mindspore_llama.VARIANTS)
def test_modules_have_the_same_names(variant):
    model = mindspore_llama.build(CONFIG, variant)
    cells = {name for name, _ in model.cells_and_names()}
    assert cells == {name for name, _ in torch_llama.build(CONFIG).named_modules()}
    assert set(FAULTY_MODULE.values()) < cells
