"""Calls with what a device computed of them are stored, continued, and read on another machine."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from msprobe_core import names
from msprobe_core.api_check.call_files import CallFiles, has_calls
from msprobe_core.api_check.call_records import Header
from msprobe_core.api_check.call_writer import CallWriter
from msprobe_core.api_check.three_way import FreshResults, not_computed
from msprobe_core.errors import DumpError, StoreError
from msprobe_core.findings import noted
from msprobe_core.model import Argument, ReplayTensor
from msprobe_core.replay.recorded import RecordedCall

HEADER = Header(framework="pytorch", dump="a" * 64, devices=("npu:0",))


def tensor(values, dtype=None, **rest):
    values = np.asarray(values)
    return ReplayTensor(values=values, dtype=dtype or values.dtype.name, **rest)


def bfloat16(*shape, seed=0):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return tensor((values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32), "bfloat16")


def call(number=0, **parts):
    entry = f"Functional.linear.{number}.forward"
    return RecordedCall(entry=entry, site=names.parse_entry(entry), **parts)


def store(directory, calls, fresh=(), header=HEADER, **options):
    writer = CallWriter(directory, header, **options)
    for position, each in enumerate(calls):
        writer.add(each, position, fresh)
    writer.close()
    return CallFiles(directory)


def content(value):
    """Return values that compare equal if calls do, to the last bit."""
    if isinstance(value, ReplayTensor):
        return value.values.tobytes(), value.values.dtype, value.values.shape, value.dtype, value.takes_gradient
    if isinstance(value, list):
        return [content(item) for item in value]
    return {key: content(item) for key, item in value.items()} if isinstance(value, dict) else value


TENSORS = {
    "float32": tensor(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)),
    "float64": tensor(np.random.default_rng(0).normal(size=5)),
    "bfloat16": bfloat16(2, 7),
    "bfloat16 that is not": tensor(np.float32([1.2345678, np.nan]), "bfloat16"),
    "float16": tensor(np.float32([1.5, -0.0, 6e-8, np.inf, np.nan]), "float16"),
    "float16 that is not": tensor(np.float32([1e6]), "float16"),
    "float8": tensor(np.float32([0.5, 448.0]), "float8_e4m3fn"),
    "complex64": tensor(np.complex64([[1 + 2j], [-0.0 + 1e-30j]])),
    "complex128": tensor(np.array(1 + 2j)),
    "int64": tensor(np.array([2**62, -1])),
    "bool": tensor(np.array([[True, False]])),
    "0-d": tensor(np.float32(3.5)),
    "empty": tensor(np.empty((0, 3), np.float32)),
    "transposed": tensor(np.arange(6, dtype=np.float32).reshape(2, 3).T),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_to_the_last_bit(tmp_path, name):
    given = TENSORS[name]
    found = store(tmp_path / "calls", [call(args=[given])]).read("Functional.linear.0.forward").call
    assert content(found.args) == content([given])


def test_half_precision_takes_half_the_space(tmp_path):
    sizes = {}
    for value in (bfloat16(64, 64), tensor(bfloat16(64, 64).values)):
        store(tmp_path / value.dtype, [call(args=[value])])
        sizes[value.dtype] = (tmp_path / value.dtype / "calls-00000.safetensors").stat().st_size
    assert sizes["float32"] - sizes["bfloat16"] == pytest.approx(2 * 64 * 64, abs=64)


def test_a_call_comes_back_whole(tmp_path):
    x = bfloat16(2, 3)
    given = RecordedCall(
        entry="Functional.linear.7.backward", site=names.parse_entry("Functional.linear.7.backward"),
        args=[x, [x, None, Argument("int", "3"), {}], {"a.b": Argument("str", "text\u2028")}],
        kwargs={"eps": Argument("float", "1e-05")}, parameters={"inner.weight": bfloat16(3, seed=1)},
        gradients={"0": bfloat16(2, 3, seed=2)}, outputs={"0": bfloat16(2, 3, seed=3)},
        scalars={"0": "bfloat16 [2, 3]"},
    )  # fmt: skip
    fresh = [FreshResults(device="npu:0", results={"0": bfloat16(2, 3, seed=4)}), not_computed("npu:1", "it failed")]
    read = store(tmp_path / "calls", [given], fresh).read(given.entry)
    assert read.call.args[1][2] == Argument("int", "3")
    for part in ("args", "kwargs", "parameters", "gradients", "outputs", "scalars"):
        assert content(getattr(read.call, part)) == content(getattr(given, part))
    assert content(dict(read.fresh[0].results)) == content(dict(fresh[0].results))
    assert read.fresh[1].problem == fresh[1].problem
    assert has_calls(tmp_path / "calls")


def test_what_a_call_lacks_comes_back(tmp_path):
    given = call(missing=noted("its input 0 has statistics only"))
    found = store(tmp_path / "calls", [given]).read(given.entry)
    assert found.call.missing is not None
    assert found.call.missing.text == "its input 0 has statistics only"


def test_equal_tensors_are_stored_once(tmp_path):
    x = tensor(np.arange(1000.0))
    store(tmp_path / "calls", [call(i, args=[x], outputs={"0": x}) for i in range(20)])
    assert (tmp_path / "calls" / "calls-00000.safetensors").stat().st_size < 2 * x.values.nbytes


def test_parts_are_bounded_and_calls_keep_their_order(tmp_path):
    values = np.random.default_rng(0).normal(size=(10, 1000))
    calls = [call(i, args=[tensor(row)]) for i, row in enumerate(values)]
    found = store(tmp_path / "calls", calls, part_bytes=16_000)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "calls").glob("*.safetensors"))]
    assert len(sizes) == found.num_parts == 5
    assert max(sizes) < 16_000 + 8_000 + 1000
    assert found.entries == [each.entry for each in calls]
    assert content(found.read(calls[7].entry).call.args) == content(calls[7].args)


def test_a_call_of_many_elements_is_not_read(tmp_path):
    store(tmp_path / "calls", [call(args=[tensor(np.zeros(100)), tensor(np.ones(100))])])
    found = CallFiles(tmp_path / "calls", max_elements=150).read("Functional.linear.0.forward")
    assert found.call.missing is not None
    assert "150" in found.call.missing.text
    assert found.call.args == []


def test_files_are_for_their_owner_only(tmp_path):
    store(tmp_path / "calls", [call(args=[tensor([1.0])])])
    assert stat.S_IMODE((tmp_path / "calls").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "calls").iterdir()}
    assert modes == dict.fromkeys(("calls.json", "calls-00000.json", "calls-00000.safetensors"), 0o600)


class TestContinued:
    def test_what_is_stored_is_known(self, tmp_path):
        store(tmp_path / "calls", [call(i, args=[tensor([float(i)])]) for i in range(3)])
        writer = CallWriter(tmp_path / "calls", HEADER)
        assert writer.entries == {f"Functional.linear.{i}.forward" for i in range(3)}
        writer.add(call(3, args=[tensor([3.0])]), 3, [])
        writer.close()
        found = CallFiles(tmp_path / "calls")
        assert [found.read(entry).call.args[0].values[0] for entry in found.entries] == [0.0, 1.0, 2.0, 3.0]

    @pytest.mark.parametrize("other", [{"dump": "b" * 64}, {"devices": ("cuda:0",)}, {"framework": "mindspore"}])
    def test_other_calls_are_not_mixed_in(self, tmp_path, other):
        store(tmp_path / "calls", [call()])
        fields = {"framework": "pytorch", "dump": "a" * 64, "devices": ("npu:0",)} | other
        with pytest.raises(StoreError, match="of another dump or from other devices; choose a new directory"):
            CallWriter(tmp_path / "calls", Header(**fields))

    def test_other_files_are_left_alone(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(StoreError, match="holds other files"):
            CallWriter(tmp_path, HEADER)

    def test_a_killed_process_loses_its_last_part_only(self, tmp_path):
        program = """
            import os, signal, sys
            import numpy as np
            from pathlib import Path
            from test_call_files import HEADER, call, tensor
            from msprobe_core.api_check.call_writer import CallWriter
            writer = CallWriter(Path(sys.argv[1]), HEADER, part_calls=4)
            for i in range(10):
                writer.add(call(i, args=[tensor(np.full(50, float(i)))]), i, [])
            os.kill(os.getpid(), signal.SIGKILL)
        """
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "calls")],
            env={**os.environ, "PYTHONPATH": path},
        )
        assert ended.returncode == -signal.SIGKILL
        (tmp_path / "calls" / "calls-00002.safetensors").write_bytes(b"half a part")
        (tmp_path / "calls" / ".calls-00002.safetensors.part").write_bytes(b"half a part")
        assert len(CallFiles(tmp_path / "calls").entries) == 8
        writer = CallWriter(tmp_path / "calls", HEADER)
        assert len(writer.entries) == 8
        for i in range(8, 10):
            writer.add(call(i, args=[tensor(np.full(50, float(i)))]), i, [])
        writer.close()
        found = CallFiles(tmp_path / "calls")
        assert [found.read(entry).call.args[0].values[-1] for entry in found.entries] == [float(i) for i in range(10)]


def shorten(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def edit(change):
    def apply(path):
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return apply


DAMAGE = {
    "tensors cut off": ("calls-00000.safetensors", shorten, "it is cut off or replaced"),
    "a bit of a tensor": ("calls-00000.safetensors", flip, "do not match the checksum"),
    "no tensors": ("calls-00000.safetensors", Path.unlink, "cannot be read"),
    "index cut off": ("calls-00000.json", shorten, "is not a whole file of stored calls"),
    "a part is missing": ("calls-00000.json", Path.unlink, "calls-00000.json: is missing, while later parts"),
    "header cut off": ("calls.json", shorten, "is not a whole file"),
    "another format": ("calls.json", edit(lambda each: each.update(format="x")), "is not of stored calls"),
    "another version": ("calls.json", edit(lambda each: each.update(version=9)), "another release"),
    "no call": (
        "calls-00000.json",
        edit(lambda each: each["calls"][0].update(entry="../../etc/passwd")), "is not the name of a call",
    ),
    "a call twice": (
        "calls-00000.json", edit(lambda each: each["calls"].append(each["calls"][0])), "has a call twice",
    ),
    "another shape": (
        "calls-00000.json", edit(lambda each: each["calls"][0]["args"][0].update(shape=[1])), "has another shape",
    ),
    "another key": (
        "calls-00000.json",
        edit(lambda each: each["calls"][0]["args"][0].update(key="../t0")), "does not hold the tensor",
    ),
    "no complex numbers": (
        "calls-00000.json",
        edit(lambda each: each["calls"][0]["args"][0].update(is_complex=True)), "holds no complex numbers",
    ),
    "a device with the name of a side": (
        "calls-00000.json",
        edit(lambda each: each["calls"][0].update(fresh=[{"device": "recorded"}])), "is not the name of a device",
    ),
    "a device with an escape": (
        "calls-00000.json",
        edit(lambda each: each["calls"][0].update(fresh=[{"device": "\x1b[2J"}])), "is not the name of a device",
    ),
    "a number for a text": (
        "calls-00000.json", edit(lambda each: each["calls"][0].update(entry=7)), "Expected `str`, got `int`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_line(tmp_path, name):
    file, damage, message = DAMAGE[name]
    store(tmp_path, [call(i, args=[tensor(np.arange(3.0) + i)]) for i in range(2)], part_calls=1)
    damage(tmp_path / file)
    with pytest.raises(DumpError, match=message) as raised:
        CallFiles(tmp_path).read("Functional.linear.0.forward")
    assert "\n" not in str(raised.value)
    assert str(raised.value).isprintable()


def test_deep_nesting_is_an_error(tmp_path):
    store(tmp_path, [call(args=[tensor([1.0])])])
    index = tmp_path / "calls-00000.json"
    stored = json.loads(index.read_text())
    stored["calls"][0]["args"] = ["DEEP"]
    deep = '{"is":"list","items":[' * 100_000 + "]}" * 100_000
    index.write_text(json.dumps(stored).replace('"DEEP"', deep))
    with pytest.raises(DumpError, match="nested too deeply"):
        CallFiles(tmp_path)


def test_tensors_are_those_that_other_libraries_read(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    store(tmp_path, [call(args=[tensor(np.arange(6.0).reshape(2, 3)), tensor(np.array([1 + 2j]))])])
    found = numpy.load_file(tmp_path / "calls-00000.safetensors")
    np.testing.assert_array_equal(found["t0"], np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(found["t1"], [[1.0, 2.0]])
