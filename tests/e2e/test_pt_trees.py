"""Files of many tensors that PyTorch writes, of several releases and protocols, are read as PyTorch reads them."""

import argparse
import collections
import enum
import random

import numpy as np
import pytest
import torch

from msprobe_core.store.pt_trees import Opaque, open_pt_tree


class Color(enum.Enum):
    RED = 1


def state():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()
    whole = torch.arange(24.0).reshape(4, 6)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "views": [whole, whole.t(), whole[1:, ::2], whole[2]],
        "dtypes": {str(dtype): torch.ones(3).to(dtype) for dtype in (
            torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.float8_e4m3fn, torch.uint16)},
        "args": argparse.Namespace(tp=2, name="x", enum=Color.RED, dtype=torch.bfloat16),
        "random": [torch.get_rng_state(), random.getstate(), np.random.get_state()],
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "counts": collections.defaultdict(list, {1: [2]}),
        "keys": {(1, "a"): torch.zeros(2), None: 1, 2.5: 2},
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "module": model,
        "scalar": np.float64(2.5),
    }  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{}, {"pickle_protocol": 5}, {"_use_new_zipfile_serialization": False}],
    ids=["zip", "protocol 5", "legacy"],
)
def test_every_tensor_is_read_as_pytorch_reads_it(tmp_path, options):
    saved = state()
    if options.get("_use_new_zipfile_serialization") is False:
        # PyTorch itself cannot read these from such a file.
        del saved["dtypes"]["torch.uint16"], saved["dtypes"]["torch.float8_e4m3fn"]
    torch.save(saved, tmp_path / "x.pt", **options)
    expected = torch.load(tmp_path / "x.pt", weights_only=False)
    tree = open_pt_tree(tmp_path / "x.pt")
    found = dict(tree.tensors())
    compared = 0
    for path, tensor in found.items():
        if path[0] == "module":
            continue
        value = expected
        for key in path:
            value = value[key]
        value = value.detach().resolve_conj()
        assert tensor.dtype == str(value.dtype).removeprefix("torch.")
        values = value.float() if value.dtype in (torch.bfloat16, torch.float8_e4m3fn) else value
        np.testing.assert_array_equal(tensor.read(), values.numpy())
        compared += 1
    assert compared == sum(isinstance(part, torch.Tensor) for part in leaves({**expected, "module": None}))
    module = [path for path in found if path[0] == "module"]
    assert len(module) == len(expected["module"].state_dict())
    assert tree.value["args"]["tp"] == 2
    assert tree.value["args"]["enum"].name.endswith(".Color")
    assert tree.value["counts"] == {1: [2]}
    assert isinstance(tree.value["scalar"], Opaque)
    storages = {tensor.storage for path, tensor in found.items() if path[0] == "views"}
    assert len(storages) == 1


def leaves(value):
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    else:
        yield value
