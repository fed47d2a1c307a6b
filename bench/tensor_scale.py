"""Cost of comparing whole tensors: many small pairs, and one pair that must not be held in memory as a whole.

``python bench/tensor_scale.py`` writes 500 calls with 3 tensors of 64 K float32 on either side, 0.8 GB of ``.pt``
files, and compares them from the command line; ``--gigabytes 10`` instead compares one pair of tensors of that total
size. On a machine with other load, CPU seconds are the reliable figure.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

NUM_CALLS, NUM_TENSORS, NUMEL = 500, 3, 1 << 16


def write_pt(path: Path, values: np.ndarray) -> None:
    """Write a vector of float32 in the format of ``torch.save``, without PyTorch."""
    numel = values.size.to_bytes(4, "little")
    description = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
        b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuJ" + numel + b"tQK\x00J" + numel + b"\x85K\x01\x85"
        b"\x89ccollections\nOrderedDict\n)RtR."
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (("data.pkl", description), ("byteorder", b"little"), ("data/0", values.data)):
            archive.writestr(f"archive/{name}", bytes(content))


def leaf(shape: list[int], file_name: str) -> dict[str, object]:
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, "Max": 1.0, "Min": 0.0, "Mean": 0.5,
        "Norm": 1.0, "requires_grad": True, "data_name": file_name,
    }  # fmt: skip


def write_dump(directory: Path, data: dict[str, object]) -> Path:
    dump = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
    (directory / "dump.json").write_text(json.dumps(dump))
    return directory / "dump.json"


def many_small(directory: Path, noise: float) -> Path:
    rng = np.random.default_rng(0)
    folder = directory / "dump_tensor_data"
    folder.mkdir(parents=True)
    data: dict[str, object] = {}
    for call in range(NUM_CALLS):
        entry = f"Functional.linear.{call}.forward"
        leaves = []
        for part in ("input.0", "input.1", "output.0")[:NUM_TENSORS]:
            values = rng.standard_normal(NUMEL, np.float32)
            values *= np.float32(1) + np.float32(noise) * rng.standard_normal(NUMEL, np.float32)
            write_pt(folder / f"{entry}.{part}.pt", values)
            leaves.append(leaf([NUMEL], f"{entry}.{part}.pt"))
        data[entry] = {"input_args": leaves[:2], "input_kwargs": {}, "output": leaves[2:]}
    return write_dump(directory, data)


def one_large(directory: Path, num_bytes: int, noise: float) -> Path:
    folder = directory / "dump_tensor_data"
    folder.mkdir(parents=True)
    entry = "Functional.linear.0.forward"
    rng = np.random.default_rng(0)
    rows = num_bytes // 4 >> 20
    with (folder / f"{entry}.output.0.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, 1 << 20)}
        np.lib.format.write_array_header_1_0(file, header)
        values = rng.standard_normal(1 << 20, np.float32)
        values *= np.float32(1) + np.float32(noise) * rng.standard_normal(1 << 20, np.float32)
        for _ in range(rows):
            file.write(values.data)
    data = {entry: {"input_args": [], "input_kwargs": {}, "output": [leaf([rows, 1 << 20], f"{entry}.output.0.npy")]}}
    return write_dump(directory, data)


def measure(target: Path, golden: Path, output: Path) -> None:
    command = [sys.executable, "-m", "msprobe_core", "compare", "-tp", target, "-gp", golden, "-o", output]
    start = time.perf_counter()
    run = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(run.pid, 0)
    wall = time.perf_counter() - start
    num_bytes = sum(p.stat().st_size for side in (target, golden) for p in side.parent.rglob("*.*"))
    cpu = usage.ru_utime + usage.ru_stime
    print(
        f"  {num_bytes / 1e9:.2f} GB of both sides: {wall:.2f} s, {cpu:.2f} CPU s ({usage.ru_stime:.2f} of them in the "
        f"system), {num_bytes / 1e9 / cpu:.2f} GB per CPU second, {usage.ru_maxrss >> 10} MiB, exit status "
        f"{os.waitstatus_to_exitcode(status)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, help="Compare one pair of tensors of this size in all.")
    arguments = parser.parse_args()
    with TemporaryDirectory() as temporary:
        root = Path(temporary)
        for name, noise in (("equal", 0.0), ("different", 1e-4)):
            golden, target = root / f"golden_{name}", root / f"target_{name}"
            if arguments.gigabytes is None:
                print(f"{NUM_CALLS} calls of {NUM_TENSORS} tensors of {NUMEL} float32, {name}:")
                pair = many_small(target, noise), many_small(golden, 0.0)
            else:
                print(f"one pair, {name}:")
                size = int(arguments.gigabytes * 5e8)
                pair = one_large(target, size, noise), one_large(golden, size, 0.0)
            measure(*pair, root / "output")


if __name__ == "__main__":
    main()
