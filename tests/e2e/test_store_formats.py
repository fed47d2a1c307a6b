"""A PyTorch run stored in every way there is: the same records, the same tensors, the same comparison."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from torch_has import dtypes
from torch_rig import TorchRig

from msprobe_core.capture import Session
from msprobe_core.compare import compare_dumps
from msprobe_core.config import load_config
from msprobe_core.store.reading import read_dump
from msprobe_core.store.safetensors_writer import ShardWriter
from msprobe_core.store.tensors import read_tensor

pytest.importorskip("pyarrow")

DTYPES = dtypes(
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu",
)  # fmt: skip


def values_of(dtype):
    """Return a tensor with every pattern of one byte, or random numbers in larger elements."""
    if dtype.itemsize == 1 and dtype is not torch.bool:
        return torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 16)
    return (torch.randn(3, 5) * 9).abs().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_stored_in_shards(dtype, tmp_path):
    """As PyTorch's own file of it is read, and as the safetensors library gives it back to PyTorch."""
    safe_open = pytest.importorskip("safetensors").safe_open
    framework, shards = TorchRig().framework, ShardWriter(tmp_path)
    plain = values_of(dtype)
    for values in (plain, plain.T, plain[0, 0], plain[:0]):
        snapshot = framework.snapshot(values)
        framework.save(snapshot, tmp_path / "x.pt")
        content = framework.content(snapshot)
        assert shards.takes(content)
        reference = shards.add("x", content)
        np.testing.assert_array_equal(read_tensor(tmp_path / reference), read_tensor(tmp_path / "x.pt"))
        with safe_open(tmp_path / "shard-00000.safetensors", "pt") as file:
            found = file.get_tensor(reference.partition("#")[2])
        assert (found.dtype, found.shape) == (dtype, values.shape)
        assert found.view(torch.uint8).tolist() == snapshot.view(torch.uint8).tolist() if values.ndim else True
    shards.close()


def test_what_is_put_off_is_done_before_it_is_stored(tmp_path):
    framework, shards = TorchRig().framework, ShardWriter(tmp_path)
    values = torch.randn(2, 3, dtype=torch.complex64)
    for view in (values.conj(), values.conj().imag, values.T):
        reference = shards.add("x", framework.content(framework.snapshot(view)))
        np.testing.assert_array_equal(read_tensor(tmp_path / reference), view.resolve_conj().resolve_neg().numpy())
    shards.close()


def record(directory, fault=1.0, **settings):
    rig = TorchRig()
    settings = {"task": "tensor", "level": "mix", "dump_path": str(directory), **settings}
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(settings))
    config = load_config(directory / "config.json")
    session = Session(config, rig.framework)
    model = rig.make_model(3)
    with torch.no_grad():
        model.second.fc.weight.mul_(fault)
    model.to(torch.bfloat16)
    session.start([model])
    x = torch.linspace(-1, 1, 20, dtype=torch.bfloat16).reshape(5, 4)
    model(x).square().mean().backward()
    session.stop()
    session.close()
    (unit,) = (directory / "step0").iterdir()
    return unit


WAYS = [("json", "files"), ("json", "safetensors"), ("arrow", "files"), ("arrow", "safetensors")]


@pytest.mark.slow
def test_a_run_is_the_same_in_every_format(tmp_path):
    golden = [record(tmp_path / f"g{w}{t}", writer=w, tensor_format=t, tensor={"summary_mode": "md5"}) for w, t in WAYS]
    target = [record(tmp_path / f"t{w}{t}", 1.5, writer=w, tensor_format=t) for w, t in WAYS]
    dumps = [read_dump(unit) for unit in golden]
    stored = ["name", "file_name"]
    for dump in dumps[1:]:
        assert_frame_equal(dump.frame.drop(stored), dumps[0].frame.drop(stored), check_exact=True)
        assert dump.parents == dumps[0].parents
        assert {name: list(frames) for name, frames in dump.stacks.items()} == dumps[0].stacks
        assert dump.frame["file_name"].null_count() == dumps[0].frame["file_name"].null_count()
    assert_frame_equal(dumps[2].frame, dumps[0].frame, check_exact=True)
    assert_frame_equal(dumps[3].frame, dumps[1].frame, check_exact=True)
    first = compare_dumps(target[0], golden[0]).units[0]
    assert first.mode == "tensor"
    assert first.fault is not None
    columns = [name for name in first.rows.columns if not name.startswith(("name_", "file_name_"))]
    for t, g in [(1, 1), (3, 0), (2, 3), (0, 2)]:
        unit = compare_dumps(target[t], golden[g]).units[0]
        assert_frame_equal(unit.rows.select(columns), first.rows.select(columns), check_exact=True)
        assert unit.fault.entry == first.fault.entry
    files = [sum(f.stat().st_size for f in (unit / "dump_tensor_data").iterdir()) for unit in golden]
    assert len(list((golden[0] / "dump_tensor_data").iterdir())) > 40
    assert [path.name for path in (golden[1] / "dump_tensor_data").iterdir()] == ["shard-00000.safetensors"]
    assert files[1] == files[3]


def test_every_record_of_shards_leads_to_its_tensor(tmp_path):
    dump = read_dump(record(tmp_path / "run", writer="arrow", tensor_format="safetensors"))
    rows = dump.frame.filter(pl.col("file_name").is_not_null())
    assert rows.height > 40
    assert rows["file_name"].n_unique() < rows.height * 0.7
    for row in rows.rows(named=True):
        values = read_tensor(dump.tensor_path(row["file_name"]))
        assert (str(list(values.shape)), values.max(), values.min()) == (row["shape"], row["max"], row["min"])
