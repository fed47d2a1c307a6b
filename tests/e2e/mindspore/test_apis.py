"""Level L1 and mix in MindSpore's dynamic graph: what is recorded of real models, and that nothing changes by it."""

import gc
import types

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_llama  # noqa: E402
from mindspore import Tensor, mint, nn, ops  # noqa: E402
from mindspore_programs import Step, is_equal, record, stems  # noqa: E402
from recorded import leaves  # noqa: E402

NAMESPACES = {"Functional": ops, "Mint": mint, "MintFunctional": mint.nn.functional, "Tensor": Tensor}


@pytest.fixture(scope="module", params=mindspore_llama.VARIANTS)
def pair(request, tmp_path_factory):
    """Return the dump of whole tensors of one step, what it computed, and what it computes without the probe."""
    step = Step(request.param)
    bare, results = step(), []
    dump = record(
        tmp_path_factory.mktemp("pair"), lambda: results.append(step()), model=step.model, level="mix", task="tensor"
    )
    return types.SimpleNamespace(dump=dump, bare=bare, probed=results[0], after=step(), variant=request.param)


def test_losses_and_gradients_are_bitwise_equal(pair):
    assert is_equal(pair.probed, pair.bare)
    assert is_equal(pair.after, pair.bare)


def test_level_L1_changes_nothing_either(tmp_path):  # noqa: N802
    step = Step("nn")
    bare, results = step(), []
    dump = record(tmp_path, lambda: results.append(step()), model=step.model)
    assert is_equal(results[0], bare)
    assert {entry.split(".")[0] for entry in dump.data} == {"Functional", "Tensor", "Primitive"}


def test_everything_that_the_model_calls_is_named_by_where_it_is_from(pair):
    counts = dict.fromkeys((*NAMESPACES, "Primitive"), 0)
    for stem in stems(pair.dump):
        if not stem.startswith("Cell."):
            counts[stem.partition(".")[0]] += 1
    expected = {
        "nn": {"Functional": 22, "Mint": 0, "MintFunctional": 0, "Tensor": 79, "Primitive": 48},
        "mint": {"Functional": 6, "Mint": 31, "MintFunctional": 4, "Tensor": 61, "Primitive": 15},
    }
    assert counts == expected[pair.variant]
    names = set(stems(pair.dump))
    assert {"Tensor.__add__", "Tensor.__getitem__", "Tensor.swapaxes", "Functional.cross_entropy"} <= names
    if pair.variant == "mint":
        assert {"Mint.matmul", "Mint.cat", "MintFunctional.softmax", "Primitive.dense.Dense"} <= names
    else:
        assert {"Functional.matmul", "Functional.cat", "Functional.softmax", "Primitive.matmul.MatMul"} <= names


def test_apis_are_children_of_the_cells_that_call_them(pair):
    parents = pair.dump.json("construct.json")
    attention = "Cell.layers.0.self_attn.Attention.forward.0"
    children = [entry for entry, parent in parents.items() if parent == attention]
    assert any(entry.startswith("Tensor.swapaxes") for entry in children)
    assert parents["Functional.cross_entropy.0.forward"] is None
    linear = "Cell.layers.0.mlp.gate_proj." + ("Dense" if pair.variant == "nn" else "Linear") + ".forward.0"
    assert any(entry.startswith("Primitive.") for entry, parent in parents.items() if parent == linear)


def test_gradients_of_every_api_are_those_of_a_separate_grad(pair):
    """All that a call receives and sends in the backward pass of the model, against one of the call alone."""
    num_checked = 0
    for entry, forward in pair.dump.data.items():
        prefix, _, rest = entry.partition(".")
        backward = pair.dump.data.get(entry.replace(".forward", ".backward"))
        if prefix not in NAMESPACES or backward is None or not entry.endswith(".forward"):
            continue
        call = _Call(getattr(NAMESPACES[prefix], rest.split(".")[0]), pair.dump, forward, backward)
        for path, ours in call.recorded_gradients().items():
            golden = call.gradient(path)
            scale = np.abs(golden).max() or 1.0
            assert ours.shape == golden.shape, (entry, path)
            assert np.abs(ours - golden).max() <= 2e-6 * scale, (entry, path)
            num_checked += 1
    assert num_checked > {"nn": 120, "mint": 110}[pair.variant]


class _Call:
    """A recorded call, made again from what was recorded."""

    def __init__(self, function, dump, forward, backward):
        self._function = function
        self._dump = dump
        self._backward = backward
        self._args = [self._restored(value) for value in forward["input_args"]]
        self._kwargs = {name: self._restored(value) for name, value in forward["input_kwargs"].items()}

    def _restored(self, value):
        if isinstance(value, list):
            return tuple(self._restored(item) for item in value)
        if value is None or value["type"] == "ellipsis":
            return None if value is None else Ellipsis
        if value["type"] == "slice":
            return slice(*value["value"])
        return Tensor(self._dump.tensor(value)) if "data_name" in value else value["value"]

    def recorded_gradients(self):
        return {path: self._dump.tensor(value) for path, value in leaves(self._backward["output"]).items()}

    def gradient(self, path):
        place, *inner = (int(part) for part in path.split("."))
        watched = self._args[place][inner[0]] if inner else self._args[place]
        received = [self._dump.tensor(value) for value in leaves(self._backward["input"]).values()]

        def loss(x):
            # x * x is one tensor in two places, and its gradient is that of both.
            args = [_replaced(value, watched, x) for value in self._args]
            results = self._function(*args, **self._kwargs)
            results = results if isinstance(results, tuple) else (results,)
            return sum((result * Tensor(gradient)).sum() for result, gradient in zip(results, received, strict=True))

        return ms.grad(loss)(watched).asnumpy()


def _replaced(value, old, new):
    if isinstance(value, tuple):
        return tuple(_replaced(item, old, new) for item in value)
    is_same = isinstance(value, Tensor) and value.shape == old.shape and np.array_equal(value.asnumpy(), old.asnumpy())
    return new if is_same else value


# --- what is put in place ------------------------------------------------------------------------------------------


def all_names():
    """Return every name of every module of MindSpore, and of the classes that its functions are looked up in."""
    import sys

    owners = {name: module for name, module in sys.modules.items() if name.startswith(("mindspore", "test_", __name__))}
    for kind in (Tensor, Tensor.__mro__[1], ms.Parameter, nn.Cell):
        owners[kind.__qualname__] = kind
    for kind in _subclasses(ops.Primitive):
        owners[f"{kind.__module__}.{kind.__qualname__}.{id(kind)}"] = kind
    values = {(owner, name): id(value) for owner, found in owners.items() for name, value in dict(vars(found)).items()}
    del values["mindspore.common.hook_handle", "_HOOK_VERSION"]  # counts hooks of Cells, whoever removes them
    return values


def _subclasses(kind):
    for each in type.__subclasses__(kind):
        yield each
        yield from _subclasses(each)


def test_every_name_of_mindspore_is_what_it_was(tmp_path):
    step = Step("nn")
    step()
    gc.collect()
    during = []
    before = all_names()
    record(tmp_path, lambda: (during.append(all_names()), step()), model=step.model, level="mix")
    after = all_names()
    changed = {place for place in before if during[0].get(place) != before[place]}
    assert len(changed) > 3000
    assert ("mindspore.ops", "matmul") in changed
    assert ("Tensor", "__matmul__") in changed
    assert {place for place in before if after.get(place) != before[place]} == set()
    assert {place for place in after.keys() - before.keys() if not place[0].startswith(__name__)} == set()
