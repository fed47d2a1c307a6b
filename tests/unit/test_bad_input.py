"""Whatever is given as a dump: one sentence and status 2, or what can be compared and a note; never a traceback."""

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.cli import main

DATA = Path(__file__).parents[1] / "data" / "mindstudio_probe"
PNG = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\rIHDR" + bytes(range(256)) * 4


@pytest.fixture
def compare(tmp_path, capsys):
    """Run the command; return its status and what it said."""

    def run(target, golden=None, *options):
        golden = golden or write_dump(tmp_path / "golden", {"Torch.f.0.forward": api(tensor(), output=tensor())})
        with pytest.raises(SystemExit) as ended:
            main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "out"), *options])
        captured = capsys.readouterr()
        said = captured.out + captured.err
        assert "Traceback" not in said
        assert "internal error" not in said
        assert all(c == "\n" or c.isprintable() for c in said), repr(said)
        return ended.value.code, said

    return run


def refused(result, *words):
    """Check that it was one sentence."""
    code, said = result
    assert code == 2, said
    assert said.startswith("msprobe: error: ")
    assert said.count("\n") == 1
    assert re.search(r" \[[a-z]+\.[a-z-]+\]\n$", said)
    for word in words:
        assert word in said


def fixture_unit(name="26.2.0_statistics"):
    return DATA / name / "step0" / "proc1"


# --- files of another kind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("dump.json", PNG, "is not valid JSON"),
        ("dump.arrow", PNG, "is not an Arrow stream"),
        ("dump.json", b"", "is not valid JSON"),
        ("dump.arrow", b"", "is not an Arrow stream"),
        ("dump.json", b"\x00" * 1000, "is not valid JSON"),
        ("dump.json", b'{"task": "statistics"', "is not valid JSON"),
        ("dump.json", "{“task”: 1}".encode(), "is not valid JSON"),
        ("dump.json", b"[1, 2]", "holds list, not an object"),
        ("dump.json", b"null", "holds NoneType, not an object"),
        ("dump.json", b'{"task": 1, "data": {}}', "is not a dump"),
        ("dump.json", b'{"task": "x", "data": []}', "is not a dump"),
        ("dump.json", b'{"task": "x", "data": {}}', "holds no values to compare"),
        ("dump.json", b"[" * 200_000, "is not valid JSON"),
        ("dump.json", b'{"a":' * 200_000, "is not valid JSON"),
        ("dump.json", b'{"task": "x", "data": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}", "deep"),
        ("dump.png", PNG, "is no dump that is known here"),
        ("dump.json", PNG[:4] + b"\xff\xfe" * 100, "is not valid JSON"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_directory", [False, True], ids=["file", "directory"])
def test_other_files(tmp_path, compare, name, content, words, as_directory):
    path = tmp_path / "target" / name
    path.parent.mkdir()
    path.write_bytes(content)
    result = compare(path.parent if as_directory else path)
    if words == "deep":
        words = "is not valid JSON" if "is not valid JSON" in result[1] else "malformed"
    refused(result, *(["is one dump and"] if as_directory and name.endswith("png") else [str(path), words]))


@pytest.mark.parametrize("name", ["stack.json", "construct.json"])
def test_stacks_or_nesting_given_as_a_dump(compare, name):
    refused(compare(fixture_unit() / name), name, "is not a dump: it has no 'task' and 'data'")


@pytest.mark.parametrize(("first", "second"), [("json", "arrow"), ("arrow", "json")])
def test_one_format_under_the_name_of_the_other(tmp_path, compare, first, second):
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    from msprobe_core.store.convert import convert

    convert(fixture_unit(), tmp_path / "arrow")
    files = {"json": fixture_unit() / "dump.json", "arrow": tmp_path / "arrow" / "dump.arrow"}
    swapped = shutil.copy(files[first], tmp_path / f"dump.{second}")
    refused(compare(swapped), f"dump.{second}", "damaged or of another kind")
    stacks = shutil.copy(tmp_path / "arrow" / "stack.arrow", tmp_path / "s.arrow")
    refused(compare(stacks), "s.arrow", "lacks the columns")


def test_a_file_for_a_directory_and_the_other_way_round(tmp_path, compare):
    (tmp_path / "rank0" / "dump.json").mkdir(parents=True)
    refused(compare(tmp_path / "rank0"), "rank0 is not; give two dumps")
    refused(compare(tmp_path / "rank0" / "dump.json"), "dump.json is not; give two dumps")
    refused(compare(tmp_path / "rank0", tmp_path / "rank0"), "rank0: holds no dump")
    refused(compare(tmp_path / "missing.json"), "does not exist")
    refused(compare(tmp_path / ("x" * 5000)), "is no path")
    refused(compare("/dev/null"), "/dev/null is not; give two dumps")
    refused(compare("/dev/null", "/dev/zero"), "/dev/null: cannot be read")
    refused(compare(fixture_unit(), DATA / "26.2.0_two_ranks"), "is one dump and")
    (tmp_path / "output").write_text("x")
    code, said = compare(fixture_unit(), fixture_unit(), "-o", str(tmp_path / "output"))
    assert (code, said.count("\n")) == (2, 1)


@pytest.mark.parametrize("kind", ["socket", "loop", "fifo"])
def test_what_can_not_be_read(tmp_path, compare, kind):
    """Root may read everything, so permissions are no test; these no user can read."""
    path = tmp_path / "d" / "dump.json"
    path.parent.mkdir()
    if kind == "socket":
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("dump.json")
        os.chdir(tmp_path)
    elif kind == "fifo":
        os.mkfifo(path)  # reading it would wait for ever
    else:
        path.symlink_to(path.name)
    code, said = compare(path.parent)
    assert (code, said.count("\n")) == (2, 1)
    code, said = compare(path)
    assert (code, said.count("\n")) == (2, 1)


def test_a_file_that_may_not_be_read(tmp_path, compare):
    path = write_dump(tmp_path / "d", {"Torch.f.0.forward": api(output=tensor())})
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    refused(compare(path), str(path), "Permission denied")


def test_nothing_in_common(tmp_path, compare):
    other = write_dump(tmp_path / "t", {"Torch.other.0.forward": api(output=tensor())})
    refused(compare(other), "have no row in common")


def test_a_rank_that_cannot_be_read_leaves_the_others(tmp_path, compare):
    for side in ("t", "g"):
        for rank in range(3):
            write_dump(tmp_path / side / f"rank{rank}", {"Torch.f.0.forward": api(output=tensor())})
    (tmp_path / "t" / "rank1" / "dump.json").write_bytes(PNG)
    code, said = compare(tmp_path / "t", tmp_path / "g")
    assert code == 2
    assert "Not compared: rank1 could not be compared" in said
    assert len(list((tmp_path / "out").glob("compare_result_rank*.csv"))) == 2


# --- content ----------------------------------------------------------------------------------------------------------


def test_a_key_twice_counts_as_the_last(tmp_path, compare):
    path = write_dump(tmp_path / "t", {})
    record = json.dumps(api(tensor(), output=tensor(5.0)))
    good = json.dumps(api(tensor(), output=tensor()))
    path.write_text(f'{{"task": "x", "task": "statistics", "data": {{}}, "data": {{"Torch.f.0.forward": {record}, '
                    f'"Torch.f.0.forward": {good}}}}}')  # fmt: skip
    assert compare(path)[0] == 0


HOSTILE = [
    *(
        "=1+1",
        "+1",
        "-1+1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "\x1b[2J\x1b]0;x\x07",
        "\u202egnp.exe",
        "\x00",
        "\x9b31m",
    ),
    *("\u2028", "\u200b", "%0a", '","x', "'", "\\", "../../etc/passwd", "a" * 100_000, "[bold]x[/bold]", "😀"),
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text)[:14])
def test_hostile_names_and_values(tmp_path, compare, text):
    def dump(directory, value):
        leaf = tensor(value, type=text, dtype=text, md5=text, error=None)
        data = {f"{text}.0.forward": {"input_args": [{"type": "str", "value": text + value_text(value)}, leaf],
                                      "input_kwargs": {text: leaf}, "output": [leaf, {"type": "error", "error": text}]},
                "Torch.f.0.forward": api(tensor(), output=tensor())}  # fmt: skip
        parents = {f"{text}.0.forward": text, "Torch.f.0.forward": text}
        return write_dump(
            directory, data, parents=parents, stacks={"0": [[f"{text}.0.forward"], [text]]}, framework=text
        )

    def value_text(value):
        return "x" if value == 1.0 else "y"

    for options in ([], ["--xlsx"]):
        code, said = compare(dump(tmp_path / "t", 1.0), dump(tmp_path / "g", 2.0), *options)
        assert code == 1, said
    for path in (tmp_path / "out").glob("*.csv"):
        import polars as pl

        cells = [cell for row in pl.read_csv(path, infer_schema=False).rows() for cell in row if cell]
        risky = [cell for cell in cells if cell[0] in "=+-@\t\r" and not is_number(cell)]
        assert not risky


def is_number(text):
    try:
        float(text.removesuffix("%"))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "leaf",
    [
        tensor(shape=[-1]), tensor(shape=[2**70]), tensor(shape=[2**62, 2**62, 2**62]), tensor(shape=[0] * 10_000),
        tensor(Max="x" * 100_000), tensor(Max=10**300), tensor(Norm=-1.0), tensor(num_nan=-5), tensor(num_nan=2**64),
        tensor(dtype="torch.nothing"), tensor(requires_grad="maybe"), tensor(Max=[1, 2], Min={"a": 1}),
    ],
    ids=lambda leaf: str(leaf)[60:100],
)  # fmt: skip
def test_absurd_tensors(tmp_path, compare, leaf):
    code, _ = compare(
        write_dump(tmp_path / "t", {"Torch.f.0.forward": api(leaf, output=leaf)}),
        write_dump(tmp_path / "g", {"Torch.f.0.forward": api(tensor(), output=tensor())}),
    )
    assert code in {0, 1}
    assert compare(tmp_path / "t" / "dump.json", tmp_path / "t" / "dump.json")[0] in {0, 1}


@pytest.mark.parametrize(
    "name",
    ["../../../etc/passwd", "/etc/passwd", "..", ".", "", "a/../b.pt", "shard-0.safetensors#x", "../x.safetensors#y",
     "a\x00b.pt", "x" * 5000, "link.pt", "missing.pt", "=x.pt", "directory.pt", "folder"],
)  # fmt: skip
def test_tensor_files_elsewhere(tmp_path, compare, name):
    """They are not read, so that statistics are compared; nothing outside of the dump is opened."""
    leaf = tensor([1.0, 2.0], data_name=name)
    paths = []
    for side in ("t", "g"):
        paths.append(write_dump(tmp_path / side, {"Torch.f.0.forward": {"output": [leaf]}}, task="tensor"))
        inside = tmp_path / side / "dump_tensor_data"
        inside.mkdir()
        (inside / "link.pt").symlink_to("/etc/passwd")
        (inside / "directory.pt").mkdir()
    code, said = compare(*paths)
    assert code == (2 if name else 0)
    assert "UNDECIDED: nothing differs in what both have" in said or said.count("\n") == 1 or not name
    assert "root:" not in said


class _Attack:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("form", ["zip", "plain"])
def test_a_tensor_file_that_would_run_code(tmp_path, compare, form):
    import pickle

    marker = tmp_path / "was_attacked"
    leaf = tensor([1.0, 2.0], data_name="x.pt")
    for side in ("t", "g"):
        write_dump(tmp_path / side, {"Torch.f.0.forward": {"output": [leaf]}}, task="tensor")
        path = tmp_path / side / "dump_tensor_data" / "x.pt"
        path.parent.mkdir()
        payload = pickle.dumps(_Attack(marker), protocol=2)
        if form == "plain":
            path.write_bytes(payload)
        else:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("x/data.pkl", payload)
                archive.writestr("x/data/0", struct.pack("<2f", 1, 2))
    code, said = compare(tmp_path / "t" / "dump.json", tmp_path / "g" / "dump.json")
    assert code == 2
    assert "tensors that could not be read, so that at most their statistics were compared: 1" in said
    assert not marker.exists()


@pytest.mark.slow
def test_memory_stays_bounded_by_the_file(tmp_path):
    """Deep, wide, and with a long name; a result or a sentence, and less than half a gigabyte."""
    write_dump(tmp_path / "g", {"Torch.f.0.forward": api(output=tensor())})
    (tmp_path / "t").mkdir()
    wide = ",".join(f'"Torch.f.{i}.forward":{{"output":[{"[" * 30}null{"]" * 30}]}}' for i in range(10_000))
    deep = '"Torch.deep.0.forward":' + "[" * 200_000 + "]" * 200_000
    long = '"' + "n" * 500_000 + '.0.forward":{"output":[null]}'
    (tmp_path / "t" / "dump.json").write_text(f'{{"task":"statistics","data":{{{wide},{long},{deep}}}}}')
    arguments = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "o")]
    code = (
        "from pathlib import Path; from msprobe_core.cli import main\n"
        f"try: main({arguments})\n"
        "except SystemExit as e: print(e.code)\n"
        # Not ru_maxrss, which a process takes over from the one that has started it.
        "print([line for line in Path('/proc/self/status').read_text().splitlines() if 'VmHWM' in line][0].split()[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    lines = done.stdout.splitlines()
    assert lines[-2] in {"1", "2"}
    assert int(lines[-1]) >> 10 < 500, lines
