"""Checkpoints that MindSpore writes are read without it, as it reads them."""

import mindspore as ms
import numpy as np
import pytest
from mindspore.train import serialization

from msprobe_core.tensor_files.mindspore_checkpoint import is_mindspore_checkpoint, open_mindspore_checkpoint

DTYPES = [ms.float32, ms.float16, ms.float64, ms.int64, ms.int8, ms.uint16, ms.bool_]


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("slice_kib", [None, 1])
def test_every_value_is_read_as_mindspore_reads_it(tmp_path, monkeypatch, is_checked, slice_kib):
    if slice_kib is not None:
        monkeypatch.setattr(serialization, "SLICE_SIZE", slice_kib)
    rng = np.random.default_rng(0)
    values = [{"name": f"x.{dtype}", "data": ms.Tensor(rng.integers(0, 9, (30, 40)), dtype)} for dtype in DTYPES]
    values += [{"name": "half", "data": ms.Tensor(rng.normal(size=(50, 60)), ms.bfloat16)},
               {"name": "scalar", "data": ms.Tensor(3, ms.int32)}]  # fmt: skip
    path = tmp_path / "x.ckpt"
    ms.save_checkpoint(values, str(path), append_dict={"epoch": 3, "note": "day 1"}, crc_check=is_checked)
    assert is_mindspore_checkpoint(path)
    found = {value.name: value for value in open_mindspore_checkpoint(path).values}
    expected = ms.load_checkpoint(str(path))
    assert set(found) == set(expected)
    for name, value in expected.items():
        if isinstance(value, str):
            assert found[name].text == value
            continue
        values = value.float() if value.dtype == ms.bfloat16 else value
        np.testing.assert_array_equal(found[name].source.read(), values.asnumpy())
        assert found[name].shape == value.shape
