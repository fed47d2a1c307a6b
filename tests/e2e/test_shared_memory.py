"""Reading a tensor leaves its memory as it was: FSDP frees parameters by resizing it."""

import pytest
import torch
from msprobe.pytorch._framework import PyTorchFramework

from msprobe_core.model import Digest

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["statistics", "checksum", "xor", "hash", "sketch"])
def test_memory_can_be_resized_after_it_was_read(kind, dtype):
    reducer = PyTorchFramework().reducer()
    tensor = torch.ones(6, 4).to(dtype)
    getattr(reducer, kind)(tensor, Digest())
    reducer.collect()
    assert tensor.untyped_storage().resizable()
    tensor.untyped_storage().resize_(0)
