"""Time the writers and readers of runs, and print a table.

    python bench/store_scale.py [--records 100000] [--batch 3000] [--runs 3]

A record is the row of one tensor with four random float64 statistics and a checksum; three make an entry. Entries are
written in batches, as capture does: *early* and *late* are the medians of the first and the last tenth of the batches,
so that late over early is 1 if the cost of a record does not depend on the number of earlier ones. The formats
alternate. Sizes are those of the dump's own file and of all files together. *cpu* is the CPU time of all threads of the
process, which other processes on the machine disturb less; reading uses several threads.
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from msprobe_core.model import Batch, Digest, Entry, Phase, RunHeader, Stats, TensorMeta, TensorValue
from msprobe_core.plugins import registry
from msprobe_core.protocols.storage import Reader, WriterFactory

HEADER = RunHeader(task="statistics", level="mix", framework="pytorch", summary_mode="md5")
SHAPES = [(2, 256, 1024), (2, 256, 4096), (2, 16, 256, 256), (4096, 1024), (1024,)]
METAS = [TensorMeta("torch.Tensor", "torch.bfloat16", shape, True) for shape in SHAPES]
NAMES = ["Functional.linear", "Tensor.__add__", "Tensor.__mul__", "Functional.softmax", "Torch.matmul"]


def make_batches(num_records: int, batch_size: int) -> list[Batch]:
    """Return entries of three records each, with ``batch_size`` records per batch."""
    rng = random.Random(0)

    def value() -> TensorValue:
        stats = Stats(*[rng.uniform(-3, 3) for _ in range(4)], 0, 0)
        return TensorValue(rng.choice(METAS), Digest(stats, f"{rng.getrandbits(32):08x}"))

    entries = [
        Entry(
            name=f"{NAMES[i % 5]}.{i // 5}.forward",
            phase=Phase.FORWARD,
            sequence=i,
            parent=f"Module.layers.{i // 50}.Block.forward.0",
            stack=(
                f"File model.py, line {i % 200}, in forward, \n f(x)",
                "File train.py, line 7, in step, \n model(x)",
            ),
            inputs=[value(), value()],
            outputs=[value()],
        )
        for i in range(num_records // 3)
    ]
    size = max(1, batch_size // 3)
    parts = [entries[i : i + size] for i in range(0, len(entries), size)]
    return [Batch(part, {entry.name: entry.parent for entry in part}) for part in parts]


def write(directory: Path, factory: WriterFactory, batches: list[Batch]) -> tuple[list[float], float, float]:
    """Return microseconds per record of each batch, and total seconds and CPU seconds."""
    directory.mkdir(parents=True)
    start, start_cpu = time.perf_counter(), time.process_time()
    writer = factory.open(directory, HEADER)
    times = []
    for batch in batches:
        begin = time.perf_counter()
        writer.write(batch)
        times.append((time.perf_counter() - begin) / (3 * len(batch.entries)) * 1e6)
    writer.close()
    return times, time.perf_counter() - start, time.process_time() - start_cpu


def read(directory: Path, reader: Reader) -> tuple[float, float, int]:
    """Return seconds, CPU seconds, and the number of rows."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    height = reader.read(directory).frame.height
    return time.perf_counter() - begin, time.process_time() - begin_cpu, height


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=3_000, help="records a batch")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()

    writers, readers = registry().writers(), {reader.name: reader for reader in registry().readers()}
    names = [name for name in ("json", "arrow") if name in writers]
    batches = make_batches(arguments.records, arguments.batch)
    num_records = sum(3 * len(batch.entries) for batch in batches)
    tenth = max(1, len(batches) // 10)
    print(f"{num_records} records in {len(batches)} batches, median of {arguments.runs} runs")
    print(
        f"{'writer':<8}{'early us':>9}{'late us':>9}{'late/early':>11}{'write s':>9}{'cpu':>6}"
        f"{'B/record':>10}{'all files':>11}{'read s':>8}{'cpu':>7}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        writes: dict[str, list[tuple[list[float], float, float]]] = {name: [] for name in names}
        reads: dict[str, list[tuple[float, float, int]]] = {name: [] for name in names}
        sizes: dict[str, tuple[int, int]] = {}
        for name in names:  # warm up: imports the libraries
            write(Path(scratch, f"warm_{name}"), writers[name], batches[:1])
            read(Path(scratch, f"warm_{name}"), readers[name])
        for _ in range(arguments.runs):
            for name in names:
                directory = Path(scratch, name)
                shutil.rmtree(directory, ignore_errors=True)
                writes[name].append(write(directory, writers[name], batches))
                reads[name].append(read(directory, readers[name]))
                if reads[name][-1][2] != num_records:
                    raise SystemExit(f"{name}: {reads[name][-1][2]} rows were read")
                files = {path.stem: path.stat().st_size for path in directory.iterdir()}
                sizes[name] = files["dump"], sum(files.values())
        for name in names:
            early = statistics.median(time for times, _, _ in writes[name] for time in times[:tenth])
            late = statistics.median(time for times, _, _ in writes[name] for time in times[-tenth:])
            write_s, write_cpu = (statistics.median(run[i] for run in writes[name]) for i in (1, 2))
            read_s, read_cpu = (statistics.median(run[i] for run in reads[name]) for i in (0, 1))
            print(
                f"{name:<8}{early:>9.2f}{late:>9.2f}{late / early:>11.2f}{write_s:>9.2f}{write_cpu:>6.2f}"
                f"{sizes[name][0] / num_records:>10.1f}{sizes[name][1] / num_records:>11.1f}"
                f"{read_s:>8.3f}{read_cpu:>7.3f}"
            )
        if len(names) == 2:
            ratios = [statistics.median(run[i] for run in reads["json"]) for i in (0, 1)]
            ratios = [ratio / statistics.median(run[i] for run in reads["arrow"]) for i, ratio in enumerate(ratios)]
            print(
                f"json/arrow: {sizes['json'][0] / sizes['arrow'][0]:.1f} in size, {ratios[0]:.0f} in reading, "
                f"{ratios[1]:.0f} in its cpu time"
            )


if __name__ == "__main__":
    main()
