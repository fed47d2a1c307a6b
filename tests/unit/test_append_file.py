"""Files that grow at their end: what is written once is never written again, and a full disk is an error in words."""

import subprocess
import sys
from pathlib import Path

import pytest

import msprobe_core
from msprobe_core.model import Batch, Digest, Entry, Phase, RunHeader, Stats, TensorMeta, TensorValue
from msprobe_core.store.arrow import ArrowWriterFactory
from msprobe_core.store.json_writer import JsonWriterFactory

REPOSITORY = Path(msprobe_core.__file__).parents[1]
IO = Path("/proc/self/io")
META = TensorMeta("torch.Tensor", "torch.float32", (2, 3), True)
HEADER = RunHeader(task="statistics", level="mix", framework="pytorch")

WRITERS = {"json": JsonWriterFactory, "arrow": ArrowWriterFactory}


def written():
    """Return how many bytes this process has handed to the operating system, and in how many calls."""
    fields = dict(line.split(": ") for line in IO.read_text().splitlines())
    return int(fields["wchar"]), int(fields["syscw"])


def batch(number, num_entries=50):
    entries = [
        Entry(
            name=f"Tensor.add.{i:06}.forward", phase=Phase.FORWARD, sequence=i, stack=("File a, line 1",),
            inputs=[TensorValue(META, Digest(Stats(1.5, 0.5, 0.75, 3.0, 0, 0)))],
        )
        for i in range(number * num_entries, (number + 1) * num_entries)
    ]  # fmt: skip
    return Batch(entries, {entry.name: "Module.M.forward.0" for entry in entries})


@pytest.mark.skipif(not IO.exists(), reason="counts what this process writes, as Linux tells it")
@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_twice(tmp_path, name):
    """Each batch costs the bytes that it adds to the files, and the few bytes of their ends, however long they are."""
    if name == "arrow":
        pytest.importorskip("pyarrow")
    writer = WRITERS[name]().open(tmp_path, HEADER)
    costs = []
    for number in range(40):
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        before = written()
        writer.write(batch(number))
        after = written()
        added = sum(path.stat().st_size for path in tmp_path.iterdir()) - size
        costs.append((after[0] - before[0] - added, after[1] - before[1]))
    writer.close()
    num_files = len(list(tmp_path.iterdir()))
    ends, calls = zip(*costs, strict=True)
    assert num_files == 3
    assert set(calls) == {num_files}
    assert len(set(ends)) == 1, ends
    assert 0 < ends[0] <= 8 * num_files


def test_a_full_disk_can_be_closed(tmp_path):
    """In a process of its own, whose files may not grow: one error for the append, none for the close."""
    program = f"""
import resource, signal, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from msprobe_core.errors import StoreError
from msprobe_core.store.json_writer import JsonObjectStream
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
stream = JsonObjectStream(Path({str(tmp_path / "x.json")!r}), b"{{", b"}}")
try:
    stream.append([("entry", b'"' + b"v" * 1000 + b'"')])
except StoreError as error:
    print(error)
stream.append([("short", b"1")])
stream.close()
print("closed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "cannot be written (File too large)" in done.stdout, done.stderr
    assert done.stdout.endswith("closed\n"), done.stderr
    assert (tmp_path / "x.json").read_text() == '{"short":1}'
