"""Backward entries hold the true gradients of each call, checked against ``torch.autograd.grad``."""

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from branches import Scaled, Two
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded, leaves
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name


@pytest.fixture
def record(tmp_path, close_debugger):
    """Run a function under the probe, whole tensors kept, and return the dump."""

    def run(function, *, level="L1", model=None):
        debugger = PrecisionDebugger(dump_path=tmp_path, task="tensor", level=level, risk_level="ALL")
        with debugger.start(model):
            function()
        debugger.close()
        return Recorded(tmp_path)

    return run


def leaf(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).requires_grad_()


def intermediate(*shape, seed=0):
    return leaf(*shape, seed=seed) * 1.5


X, Y, W, B = (2, 3, 4), (2, 3, 4), (5, 4), (5,)

CALLS = {
    "linear with three dimensions": ("Functional.linear", lambda x, w, b: F.linear(x, w, b), [X, W, B]),
    "linear without bias": ("Functional.linear", lambda x, w: F.linear(x, w), [X, W]),
    "cross_entropy": ("Functional.cross_entropy", lambda x: F.cross_entropy(x, torch.tensor([0, 2])), [(2, 4)]),
    "softmax": ("Functional.softmax", lambda x: F.softmax(x, -1), [X]),
    "layer_norm": ("Functional.layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), [X, (4,), (4,)]),
    "attention": (
        "Functional.scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(1, 2, 3, 4)] * 3,
    ),
    "matmul with broadcasting": ("Torch.matmul", lambda x, y: torch.matmul(x, y), [(5, 2, 3), (3, 4)]),
    "addition with broadcasting": ("Tensor.__add__", lambda x, y: x + y, [X, (4,)]),
    "a tensor times itself": ("Tensor.__mul__", lambda x: x * x, [X]),
    "gelu": ("Functional.gelu", lambda x: F.gelu(x), [X]),
    "embedding": ("Functional.embedding", lambda w: F.embedding(torch.tensor([[1, 1, 0]]), w), [(3, 4)]),
    "einsum": ("Torch.einsum", lambda x, w: torch.einsum("ijk,lk->ijl", x, w), [X, W]),
    "conv2d": ("Functional.conv2d", lambda x, w, b: F.conv2d(x, w, b), [(1, 2, 5, 5), (3, 2, 2, 2), (3,)]),
    "indexing": ("Tensor.__getitem__", lambda x: x[:, 1:], [X]),
    "mean": ("Tensor.mean", lambda x: x.mean(-1, keepdim=True), [X]),
    "where": ("Torch.where", lambda x, y: torch.where(torch.ones(X) > 0, x, y), [X, Y]),
}


@pytest.mark.parametrize("make", [leaf, intermediate], ids=["leaves", "intermediates"])
@pytest.mark.parametrize("case", CALLS)
def test_api_gradients(case, make, record):
    entry, call, shapes = CALLS[case]
    inputs = [make(*shape, seed=i) for i, shape in enumerate(shapes)]
    generator = torch.Generator().manual_seed(9)
    result = call(*inputs)
    upstream = torch.randn(result.shape, generator=generator)
    expected = torch.autograd.grad(result, inputs, upstream)

    def step():
        # The other use of every input must not show in this call's gradients.
        others = torch.stack([x.sin().sum() for x in inputs]).sum()
        torch.dot(call(*inputs).flatten(), upstream.flatten()).add(others).backward()

    dump = record(step)
    backward = dump.data[f"{entry}.0.backward"]
    (output_gradient,) = leaves(backward["input"]).values()
    np.testing.assert_array_equal(dump.tensor(output_gradient), upstream.numpy())
    # Functions that are written in Python reach us with their optional arguments by keyword.
    places = leaves(backward["output"]) | leaves(backward.get("output_kwargs", {}))
    found = [dump.tensor(value) for value in places.values()]
    # A tensor that is given twice has a place for each; each holds the whole gradient of that tensor.
    expected = [expected[0], expected[0]] if case == "a tensor times itself" else expected
    assert len(found) == len(expected)
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, right.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_nested_and_keyword_inputs_mirror_the_forward(record):
    a, b, c = leaf(2, 3), leaf(2, 3, seed=1), leaf(2, 3, seed=2)

    def step():
        joined = torch.cat([a, b], dim=1)
        torch.add(joined, other=torch.cat((c, c), dim=1)).square().sum().backward()

    dump = record(step)
    cat, add = dump.data["Torch.cat.0.backward"], dump.data["Torch.add.0.backward"]
    total = torch.cat([a, b], 1) + torch.cat((c, c), 1)
    upstream = (2 * total).detach().numpy()
    np.testing.assert_allclose(dump.tensor(leaves(cat["output"])["0.0"]), upstream[:, :3], rtol=1e-6)
    np.testing.assert_allclose(dump.tensor(leaves(cat["output"])["0.1"]), upstream[:, 3:], rtol=1e-6)
    np.testing.assert_allclose(dump.tensor(add["output_kwargs"]["other"]), upstream, rtol=1e-6)
    np.testing.assert_allclose(dump.tensor(add["output"][0]), upstream, rtol=1e-6)


def test_several_results_each_have_a_gradient(record):
    x = leaf(4, 6)

    def step():
        first, second, _unused = torch.split(x, 2, dim=1)
        (first.sum() * 2 + second.sum() * 3).backward()

    dump = record(step)
    (entry,) = [entry for entry in dump.data if entry.endswith("split.0.backward")]
    backward = dump.data[entry]
    gradients = leaves(backward["input"])
    assert dump.tensor(gradients["0"]).tolist() == [[2.0, 2.0]] * 4
    assert dump.tensor(gradients["1"]).tolist() == [[3.0, 3.0]] * 4
    assert dump.tensor(leaves(backward["output"])["0"]).tolist() == [[2, 2, 3, 3, 0, 0]] * 4


def test_in_place_calls_keep_their_gradients(record):
    x = leaf(3, 4)

    def step():
        y = x * 2
        y.add_(x)
        F.relu(y, inplace=True)
        z = y * 3.0
        z.div_(2.0)
        z.sum().backward()

    dump = record(step)
    positive = (x.detach() > 0).numpy()
    divided = leaves(dump.data["Tensor.div_.0.backward"]["output"])["0"]
    np.testing.assert_array_equal(dump.tensor(divided), np.full((3, 4), 0.5))
    relu = leaves(dump.data["Functional.relu.0.backward"]["output"])["0"]
    np.testing.assert_array_equal(dump.tensor(relu), 1.5 * positive)
    added = leaves(dump.data["Tensor.add_.0.backward"]["output"])
    np.testing.assert_array_equal(dump.tensor(added["0"]), 1.5 * positive)
    np.testing.assert_array_equal(dump.tensor(added["1"]), 1.5 * positive)


VIEWS = {
    "flatten": lambda x: x.flatten(),
    "transpose": lambda x: x.t(),
    "part": lambda x: x[:, 1:],
    "strided": lambda x: x[::2, 1],
}


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_that_is_written_to_has_the_gradient_of_what_it_was(record, view):
    x = leaf(4, 6)

    def step():
        hidden = x * 1.5
        shown = view(hidden)
        shown.mul_(2.0)
        (shown.sin().sum() + hidden.cos().sum()).backward()

    dump = record(step)
    found = x.grad.clone()
    x.grad = None
    step()
    assert torch.equal(found, x.grad)
    old = view(x.detach() * 1.5).clone().requires_grad_()
    hidden = (x.detach() * 1.5).clone()
    places = view(torch.arange(24).reshape(4, 6)).reshape(-1)
    written = hidden.flatten().index_put((places,), (old * 2.0).reshape(-1))
    ((old * 2.0).sin().sum() + written.cos().sum()).backward()
    (made,) = [
        name for name in dump.data if name.split(".")[1] in ("flatten", "t", "__getitem__") and "backward" in name
    ]
    np.testing.assert_allclose(dump.tensor(dump.data[made]["input"][0]), old.grad, rtol=1e-6)
    np.testing.assert_allclose(dump.tensor(dump.data["Tensor.mul_.0.backward"]["output"][0]), old.grad, rtol=1e-6)
    outputs = dump.data[made]["output"]
    if old.numel() == 24:
        np.testing.assert_allclose(view(torch.from_numpy(dump.tensor(outputs[0]))), old.grad, rtol=1e-6)
    else:  # no call computes what it sent on alone
        assert outputs == []


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_training_with_views_that_are_written_to_is_bitwise_the_same(tmp_path, close_debugger, level):
    """Several writes, of views of views, with uses of the base and of the view before and between."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(6, 6)
            self.activation = nn.ReLU(inplace=True)

        def forward(self, x):
            hidden = self.fc(x)
            shown = hidden.flatten()
            more = shown + 1
            shown.mul_(2.0)
            part = hidden[:, 1:].t()
            part.add_(shown.sum() * 0.1)
            part.mul_(0.5)
            shown[2] = 0.0
            self.activation(part[::2])
            return hidden.sin().sum() + more.sum() + part.pow(2).sum()

    found = []
    for is_probed in (False, True):
        model, results = Net(), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        debugger = PrecisionDebugger(dump_path=tmp_path, level=level) if is_probed else None
        for step in range(3):
            if debugger is not None:
                debugger.start(model)
            loss = model(leaf(3, 6, seed=step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if debugger is not None:
                debugger.stop()
                debugger.step()
            results.append(loss.item())
        found.append((results, [parameter.detach().clone() for parameter in model.parameters()]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(one, other) for one, other in zip(found[0][1], found[1][1], strict=True))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_modules_around_the_view_and_the_write(record, level, caplog):
    model = nn.Sequential(nn.Linear(6, 4), nn.Flatten(0), nn.ReLU(inplace=True))
    x = leaf(3, 6)
    weights = torch.arange(12.0)
    dump = record(lambda: (model(x) * weights).sum().backward(), level=level, model=model)
    linear, bias = model[0](x).flatten().detach(), model[0].bias.grad
    expected = (weights * (linear > 0)).numpy()
    for entry, part in [("1.Flatten", "input"), ("2.ReLU", "output"), ("1.Flatten", "output"), ("0.Linear", "input")]:
        (found,) = dump.data[f"Module.{entry}.backward.0"][part]
        np.testing.assert_array_equal(dump.tensor(found).reshape(-1), expected)
    np.testing.assert_array_equal(bias, expected.reshape(3, 4).sum(0))
    assert caplog.text == ""


class Doubled(nn.Module):
    """Uses its input three times, and hands one result through as it came."""

    def forward(self, x, *, mask=None):
        y = x.sin() * x + x
        return {"y": y * mask if mask is not None else y, "same": x}


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Doubled()
        self.identity = nn.Identity()

    def forward(self, x):
        hidden = x * 1.5
        out = self.inner(hidden, mask=hidden.cos())
        return (self.identity(out["y"]) + hidden.exp() * 0.1).sum()


@pytest.mark.slow
def test_module_gradients_are_the_sum_over_all_uses(record):
    torch.manual_seed(0)
    x = leaf(3, 4)
    model = Outer()
    dump = record(lambda: model(x).backward(), level="L0", model=model)

    hidden = (x * 1.5).detach().requires_grad_()
    mask = hidden.detach().cos().requires_grad_()
    y = (hidden.sin() * hidden + hidden) * mask
    to_hidden, to_mask = torch.autograd.grad(y.sum(), (hidden, mask))
    backward = dump.data["Module.inner.Doubled.backward.0"]
    np.testing.assert_allclose(dump.tensor(backward["output_kwargs"]["mask"]), to_mask.numpy(), rtol=1e-6)
    np.testing.assert_allclose(dump.tensor(backward["output"][0]), to_hidden.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(dump.tensor(backward["input"][0]["y"]), np.ones((3, 4), np.float32))
    # A module that hands its argument through has no node of its own: its two gradients are one.
    identity = dump.data["Module.identity.Identity.backward.0"]
    np.testing.assert_array_equal(dump.tensor(identity["input"][0]), np.ones((3, 4), np.float32))
    np.testing.assert_array_equal(dump.tensor(identity["output"][0]), np.ones((3, 4), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_module_of_real_architectures(name, record):
    """Each module is run again on its own with what it got, and differentiated by itself."""
    architecture = ARCHITECTURES[name]
    model = architecture.build(use_cache=False).eval()
    seen = {}

    def watch(path, module):
        def after(_module, args, kwargs, output):
            if isinstance(output, torch.Tensor) and output.requires_grad and path and path not in seen:
                seen[path] = [module, args, kwargs, None]
                output.register_hook(lambda gradient: seen[path].__setitem__(3, gradient))

        module.register_forward_hook(after, with_kwargs=True)

    for path, module in model.named_modules():
        watch(path, module)

    dump = record(lambda: model(**architecture.batch()).loss.backward(), level="L0", model=model)
    for module in model.modules():
        module._forward_hooks.clear()

    num_checked = 0
    for path, (module, args, kwargs, upstream) in seen.items():
        stem = f"Module.{path}.{type(module).__name__}"
        entry = dump.data.get(f"{stem}.backward.0")
        if upstream is None or entry is None:
            continue
        again = [a.detach().requires_grad_() if isinstance(a, torch.Tensor) and a.requires_grad else a for a in args]
        named = {
            k: v.detach().requires_grad_() if isinstance(v, torch.Tensor) and v.requires_grad else v
            for k, v in kwargs.items()
        }
        wanted = {str(i): a for i, a in enumerate(again) if isinstance(a, torch.Tensor) and a.requires_grad}
        wanted |= {k: v for k, v in named.items() if isinstance(v, torch.Tensor) and v.requires_grad}
        if not wanted:
            continue
        expected = torch.autograd.grad(module(*again, **named), list(wanted.values()), upstream, allow_unused=True)
        found = leaves(entry["output"]) | leaves(entry.get("output_kwargs", {}))
        for (place, _), right in zip(wanted.items(), expected, strict=True):
            if right is not None:
                atol = 1e-6 * right.abs().max().item() + 1e-12
                np.testing.assert_allclose(dump.tensor(found[place]), right.numpy(), rtol=1e-4, atol=atol)
                num_checked += 1
    assert num_checked >= 10


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameter_gradients(name, record):
    architecture = ARCHITECTURES[name]
    model = architecture.build().eval()
    dump = record(lambda: model(**architecture.batch()).loss.backward(), level="L0", model=model)
    checked = set()
    for path, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            stem = ".".join(part for part in ("Module", path, type(module).__name__) if part)
            record_of = dump.data.get(f"{stem}.parameters_grad.0")
            if parameter.grad is None or id(parameter) in checked:
                continue
            checked.add(id(parameter))
            np.testing.assert_array_equal(dump.tensor(record_of[parameter_name][0]), parameter.grad.numpy())
    assert len(checked) == sum(p.grad is not None for p in model.parameters())


def test_micro_batches_accumulate_and_count(record):
    model = nn.Sequential(nn.Linear(3, 2))

    def step():
        for i in range(3):
            model(torch.full((1, 3), float(i + 1))).sum().backward()

    dump = record(step, level="L0", model=model)
    biases = [dump.tensor(dump.data[f"Module.0.Linear.parameters_grad.{n}"]["bias"][0]).tolist() for n in range(3)]
    assert biases == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert [f"Module.0.Linear.backward.{n}" in dump.data for n in range(3)] == [True] * 3


def test_gradients_of_a_call_whose_branch_is_not_used_are_handed_over(record):
    """One of two results leads to the loss: the sum over the parts that came is recorded, with a note of nothing."""
    x, model = leaf(2, 2), Scaled(Two())
    dump = record(lambda: model(x)[0].sum().backward(), level="L0", model=model)
    backward = dump.data["Module.two.Two.backward.0"]
    assert dump.tensor(backward["output"][0]).tolist() == [[2.0, 2.0]] * 2
