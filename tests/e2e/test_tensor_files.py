"""Files that PyTorch wrote are read as PyTorch reads them, without it."""

import numpy as np
import pytest
import torch
from torch_has import dtypes

from msprobe_core.store.tensors import read_tensor

DTYPES = dtypes(
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex128",
    "complex64", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip


def every_code(dtype):
    """Return a tensor with every pattern of one byte, or of the first bytes of larger elements."""
    content = torch.arange(256, dtype=torch.uint8)
    if dtype is torch.bool:
        return content % 2 == 0
    return content.repeat_interleave(1).view(dtype) if dtype.itemsize == 1 else torch.randn(16).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:.*ComplexHalf.*")
def test_dtypes(dtype, tmp_path):
    values = every_code(dtype)
    try:
        torch.save(values, tmp_path / "x.pt")
    except KeyError:
        pytest.skip("this release cannot save the dtype")
    wide = torch.complex64 if dtype is torch.complex32 else torch.float32
    expected = values.to(wide) if dtype.itemsize == 1 and dtype.is_floating_point else values
    expected = expected.to(wide) if dtype in (torch.bfloat16, torch.complex32) else expected
    np.testing.assert_array_equal(read_tensor(tmp_path / "x.pt"), expected.numpy())


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.conj(), lambda x: x.conj().T[1:], lambda x: x.imag, lambda x: x.conj().imag, lambda x: x.real,
        lambda x: x[0, 0], lambda x: x[:0], lambda x: torch.nn.Parameter(x), lambda x: x[:1].expand(4, 3),
    ],
)  # fmt: skip
def test_views(make, tmp_path):
    values = make(torch.randn(2, 3, dtype=torch.complex64))
    torch.save(values, tmp_path / "x.pt")
    np.testing.assert_array_equal(read_tensor(tmp_path / "x.pt"), values.detach().resolve_conj().resolve_neg().numpy())
