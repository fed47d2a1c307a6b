"""How many recorded calls of real architectures are replayed, what stays out and why, and what one replay costs.

Run with ``python bench/replay_coverage.py [--aten] [--bfloat16] [ARCHITECTURE ...]``; it records one training step of
each at level mix and risk level ALL, with --aten the operators below the APIs too, replays every call in float64 and in
its own precision, and compares the latter with the record.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from architectures import ARCHITECTURES
from msprobe.pytorch import PrecisionDebugger, _replay

from msprobe_core.errors import ReplayError
from msprobe_core.replay.recorded import RecordedCalls
from msprobe_core.replay.replays import Replayer
from msprobe_core.store.reading import read_dump

_MOST_ELEMENTS = 1 << 28
_SEVERAL = 20
"""Largest share of an error, in units of the largest element, that is not listed: times the unit round-off."""


def _record(place: Path, name: str, dtype: torch.dtype) -> Path:
    architecture = ARCHITECTURES[name]
    model = architecture.make().to(dtype)
    batch = {
        key: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in architecture.batch().items()
    }
    config = place / "config.json"
    settings = {"task": "tensor", "level": "mix", "risk_level": "ALL", "dump_path": str(place / "dump")}
    if "--aten" in sys.argv:
        settings |= {"level": "L1", "aten": True}
    config.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(str(config))
    with debugger.start(model):
        model(**batch).loss.backward()
    debugger.close()
    return next((place / "dump" / "step0").iterdir())


def _measure(path: Path) -> tuple[Counter[str], Counter[str], list[float]]:
    calls = RecordedCalls(read_dump(path), _MOST_ELEMENTS)
    framework = SimpleNamespace(replay=_replay.replay, why_not_replayed=_replay.why_not_replayed)
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    seconds: list[float] = []
    for entry in calls.entries:
        if entry.startswith("Module."):
            continue
        counts["calls"] += 1
        call = calls.read(entry)
        api, phase = ".".join(entry.split(".")[:2]), entry.rpartition(".")[2]
        if (reason := _replay.why_not_replayed(call.site)) is not None or call.missing is not None:
            failures[f"{api} {phase}: {reason or call.missing.text}"] += 1
            continue
        try:
            begin = time.perf_counter()
            replayer = Replayer(call, framework, None, _MOST_ELEMENTS)
            seconds.append((time.perf_counter() - begin) / 2)
        except ReplayError as error:
            failures[f"{api} {phase}: {error}"] += 1
            continue
        counts["replayed"] += 1
        own = replayer.plain.own
        if own is None:
            failures[f"{api} {phase}: not in its own precision: {replayer.plain.note.text}"] += 1
            continue
        for output, value in call.outputs.items():
            if not _is_close(own[output].values, value.values, value.dtype):
                failures[f"{api} {phase}: output {output} differs from the record"] += 1
                break
    return counts, failures, seconds


def _is_close(own: np.ndarray, recorded: np.ndarray, dtype: str) -> bool:
    if recorded.dtype.kind not in "fc":
        return np.array_equal(own, recorded)
    if recorded.size == 0:
        return own.size == 0
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(dtype, 2.0**-24)
    with np.errstate(all="ignore"):
        scale = np.abs(np.nan_to_num(recorded, posinf=0, neginf=0)).max()
        off = np.abs(own.astype("f8") - recorded) if recorded.dtype.kind == "f" else np.abs(own - recorded)
        is_same = (own == recorded) | (np.isnan(own) & np.isnan(recorded))
    return bool((is_same | (off <= _SEVERAL * unit * scale)).all())


def main() -> None:
    """Print a row per architecture, and what was not replayed."""
    logging.disable(logging.WARNING)
    dtype = torch.bfloat16 if "--bfloat16" in sys.argv else torch.float32
    names = [name for name in sys.argv[1:] if name in ARCHITECTURES] or list(ARCHITECTURES)
    failures: Counter[str] = Counter()
    total: Counter[str] = Counter()
    print(f"{'architecture':14} {'calls':>6} {'replayed':>9} {'share':>8} {'median ms':>10} {'p99 ms':>8}")
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            counts, missed, seconds = _measure(_record(Path(place), name, dtype))
        failures += missed
        total += counts
        times = np.array(seconds) * 1e3
        share = counts["replayed"] / counts["calls"]
        print(
            f"{name:14} {counts['calls']:6} {counts['replayed']:9} {share:8.2%} {np.median(times):10.2f}"
            f" {np.percentile(times, 99):8.2f}",
            flush=True,
        )
    print(f"{'all':14} {total['calls']:6} {total['replayed']:9} {total['replayed'] / total['calls']:8.2%}\n")
    for what, number in failures.most_common():
        print(f"{number:5}  {what}")


if __name__ == "__main__":
    main()
