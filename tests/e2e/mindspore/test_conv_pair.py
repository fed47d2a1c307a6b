"""The pair of small convolutional nets is one model: both frameworks compute the same from the same weights."""

import conv_config
import mindspore as ms
import mindspore_conv
import numpy as np
import pytest
import torch
import torch_conv

CONFIG = conv_config.ConvConfig()
LARGEST_DIFFERENCE = 2e-5  # relative to the largest element
# What follows a convolution is normalised, so its bias changes nothing, and its gradient is rounding noise.
WITHOUT_GRADIENT = {"blocks.0.conv.bias", "blocks.1.conv.bias"}


def torch_outputs(has_fault=False):
    """Return the logits, the gradients by parameter, and parameters and running statistics after the step."""
    model = torch_conv.build(CONFIG, has_fault)
    images, labels = (torch.from_numpy(array) for array in conv_config.batch(CONFIG))
    logits = model(images)
    torch_conv.loss_function(logits, labels.long()).backward()
    state = {name: array.numpy() for name, array in model.state_dict().items()}
    return logits.detach().numpy(), {name: weight.grad.numpy() for name, weight in model.named_parameters()}, state


def mindspore_outputs(has_fault=False):
    model = mindspore_conv.build(CONFIG, has_fault)
    parameters = model.trainable_params()
    images, labels = (ms.Tensor(array) for array in conv_config.batch(CONFIG))
    _, gradients = ms.value_and_grad(mindspore_conv.WithLoss(model), None, parameters)(images, labels)
    state = {parameter.name: parameter.asnumpy().copy() for parameter in model.get_parameters()}
    logits = model(images).asnumpy()
    named = {weight.name: gradient.asnumpy() for weight, gradient in zip(parameters, gradients, strict=True)}
    return logits, named, state


def assert_close(found, golden, what):
    assert np.abs(found - golden).max() < LARGEST_DIFFERENCE * np.abs(golden).max(), what


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
@pytest.mark.parametrize("has_fault", [False, True])
def test_both_compute_the_same(has_fault, mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ms.set_context(mode=mode)
    try:
        logits, gradients, state = mindspore_outputs(has_fault)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    golden_logits, golden_gradients, golden_state = torch_outputs(has_fault)
    assert_close(logits, golden_logits, "logits")
    for name, golden in golden_gradients.items():
        gradient = gradients.pop(mindspore_conv.parameter_name(name))
        if name not in WITHOUT_GRADIENT:
            assert_close(gradient, golden, name)
    assert not gradients
    for name in conv_config.weights(CONFIG):  # with the running statistics after a step
        if "running" in name:
            assert_close(state[mindspore_conv.parameter_name(name)], golden_state[name], name)
    if has_fault:
        assert np.abs(logits - torch_outputs()[0]).max() > 0.001


def test_modules_have_the_same_names():
    cells = {name for name, _ in mindspore_conv.build(CONFIG).cells_and_names()}
    assert cells == {name for name, _ in torch_conv.build(CONFIG).named_modules()}
    assert conv_config.FAULTY_MODULE in cells
