"""What the time that recording adds to a step is made of: microseconds per record, by part of the probe.

    python bench/capture_floor.py [--steps 40] [--models small] [--levels L0 L1 mix] [--modes statistics] [--lines 0]

Steps with and without the probe alternate in one process, on one thread. Their difference in CPU time of that thread is
what recording adds; what the process takes beyond it is the thread that writes files. During recorded steps a timer
interrupts the thread, and the CPU time since the interrupt before counts for the part to which the innermost frame of
the probe belongs. An interrupt is handled when the next call begins or ends, so at the first line of a function it
counts for the caller; without such a frame, or in the program's own call, it is the program. Collections of garbage are
timed too, and are part of what ran meanwhile. ``--lines`` shows so many lines of code, with milliseconds of all steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from capture_cost import make_training

ROOT = Path(__file__).parents[1]
CORE, PLUGIN = str(ROOT / "msprobe_core"), str(ROOT / "plugins/pytorch/msprobe/pytorch")
SECONDS = 0.0002
"""Time between two interrupts."""

PARTS: dict[str, tuple[str, ...]] = {
    "dispatch of calls and modules": (
        "interception/apis.py", "interception/modules.py", "interception/patching.py", "_functions.py", "_apis.py",
        "_calls.py", "_modules.py", "_slots.py", "_omitted_arguments.py", "_collectives.py", "_owners.py",
        "_unwritten.py", "interception/call_scope.py", "_dropout.py", "interception/attachment.py",
    ),
    "guard around the probe's work": ("_quiet.py",),
    "arguments and tensors, described": (
        "capture/values.py", "capture/arguments.py", "interception/containers.py", "_framework.py",
        "capture/tensor_reader.py", "_transforms.py",
    ),
    "reductions": (
        "interception/host_reducer.py", "_reduce.py", "_statistics.py",
        "_native.py", "_memory.py", "native/", "fingerprint/", "capture/processors.py",
    ),
    "gradients: graph and hooks": (
        "interception/gradients.py", "interception/autograd_graph.py", "_gradients.py",
        "capture/backward_collector.py", "_parameters.py", "capture/parameter_gradients.py",
    ),
    "stacks": ("interception/stacks.py",),
    "names, nesting, selection, order": (
        "capture/call_tree.py", "capture/call_selector.py", "capture/selection.py", "capture/recorded_call.py",
        "capture/recorder.py", "capture/step_record.py", "capture/batch_builder.py", "capture/order.py", "names.py",
    ),
}  # fmt: skip
"""Parts, and the files that belong to each; what is in none is the window's begin and end, and handing over."""

REST = "begin and end of the window"
PROGRAM = "the program"
WRITING = "writing, on a thread of its own"


THROUGH = frozenset({
    ("interception/apis.py", "_call"), ("_functions.py", "run_backward"), ("_functions.py", "__torch_function__"),
    ("_slots.py", "__call__"), ("interception/patching.py", "run"), ("interception/patching.py", "__call__"),
    ("interception/apis.py", "run_foreign"),
})  # fmt: skip
"""Functions that call the program's own: what runs there without another frame of the probe is the program."""

CALLS = frozenset({("interception/apis.py", "_call"), ("_functions.py", "run_backward")})
"""Those whose own time is that of what they call, which may be no Python."""


def part_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the part that a sample counts for, and its line."""
    is_inner = True  # no frame of others has been passed
    while frame is not None:
        name, own = frame.f_code.co_name, own_file(frame.f_code.co_filename)
        if own is None:
            is_inner = False
        elif (frame.f_lineno or 0) > frame.f_code.co_firstlineno:
            line = f"{own}:{frame.f_lineno} {name}"
            if (own, name) in (CALLS if is_inner else THROUGH):
                return PROGRAM, line
            return next((part for part, files in PARTS.items() if own.startswith(files)), REST), line
        frame = frame.f_back
    return PROGRAM, ""


def own_file(path: str) -> str | None:
    """Return the path of a file of the probe, from its package on; ``None`` for other files."""
    return next((path[len(each) + 1 :] for each in (CORE, PLUGIN) if path.startswith(each)), None)


class Sampler:
    """Nanoseconds of CPU time of this thread, by part and by line."""

    def __init__(self) -> None:
        """Begin without samples."""
        self.parts: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self.size = 0
        self._last = 0.0
        signal.signal(signal.SIGALRM, self._note)

    def _note(self, _number: int, frame: FrameType | None) -> None:
        passed = round(1e9 * (time.thread_time() - self._last))  # not what a sample itself, or waiting, takes
        part, line = part_of(frame)
        self.parts[part] += passed
        self.lines[line] += passed
        self.size += 1
        self._last = time.thread_time()

    def around(self, step: Callable[[], object]) -> None:
        """Run a step with the timer on."""
        self._last = time.thread_time()
        signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)
        try:
            step()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


class Collections:
    """CPU seconds of the garbage collector."""

    def __init__(self) -> None:
        """Begin to count."""
        self.seconds = self._began = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._began


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Train in this process; return CPU milliseconds of a step by part, and how many records it has."""
    model, optimizer, tokens = make_training(case | {"threads": 1})
    from msprobe.pytorch import PrecisionDebugger

    root = Path(case["directory"])
    task = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": case["mode"]}
    settings = {"task": "statistics", "dump_path": str(root / "run"), "level": case["level"], "risk_level": "ALL"}
    (root / "config.json").write_text(json.dumps({**settings, "statistics": task}))
    debugger = PrecisionDebugger(config_path=str(root / "config.json"))

    def train() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def record() -> None:
        debugger.start(model=model)
        train()
        debugger.stop()
        debugger.step()

    for _ in range(3):
        train()
        record()
    bare, recorded, whole = list[float](), list[float](), list[float]()
    sampler, collections = Sampler(), Collections()
    during_recorded = 0.0
    for _ in range(case["steps"]):  # samples cost time, so that steps with them are not measured
        bare.append(_thread_ms(train))
        before = time.process_time()
        collected = collections.seconds
        recorded.append(_thread_ms(record))
        during_recorded += collections.seconds - collected
        whole.append(1000 * (time.process_time() - before))
        sampler.around(record)
    debugger.close()
    entries = json.loads(next((root / "run").glob("step*/**/dump.json")).read_text())["data"]
    return {
        "bare": statistics.median(bare), "recorded": statistics.median(recorded), "whole": statistics.median(whole),
        "collected": 1000 * during_recorded / case["steps"], "parts": sampler.parts,
        "lines": sampler.lines.most_common(case["lines"]), "size": sampler.size, "entries": len(entries),
        "tensors": json.dumps(entries).count('"Norm"'),
    }  # fmt: skip


def _thread_ms(step: Callable[[], object]) -> float:
    begin = time.thread_time()
    step()
    return 1000 * (time.thread_time() - begin)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Run one case in a separate process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable,
            str(Path(__file__).absolute()),
            "--case",
            json.dumps(case | {"directory": directory}),
        ]
        said = subprocess.check_output(command, text=True, cwd=directory)
        return json.loads(said.strip().splitlines()[-1])


def table_of(found: dict[str, Any]) -> Sequence[tuple[str, float]]:
    """Return the milliseconds that a step adds: by part, in all on the training's thread, and by the writer's."""
    added = found["recorded"] - found["bare"]
    own = {part: count for part, count in found["parts"].items() if part != PROGRAM}
    unit = added / sum(own.values())  # the program's own time is that of the bare step
    parts = [(part, unit * own.get(part, 0)) for part in (*PARTS, REST)]
    return [*parts, ("in all", added), (WRITING, found["whole"] - found["recorded"])]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--models", nargs="+", default=["small"])
    parser.add_argument("--levels", nargs="+", default=["L0", "L1", "mix"])
    parser.add_argument("--modes", nargs="+", default=["statistics"])
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(json.loads(arguments.case))))
        return
    for model in arguments.models:
        for level in arguments.levels:
            for mode in arguments.modes:
                case = {"model": model, "level": level, "mode": mode, "steps": arguments.steps}
                found = measure(case | {"lines": arguments.lines})
                entries, tensors = found["entries"], found["tensors"]
                bare, recorded, num_samples = found["bare"], found["recorded"], found["size"]
                print(f"\n{model}, {level}, {mode}: {bare:.1f} ms without the probe, {recorded:.1f} with it; ", end="")
                print(f"{entries} records, {tensors} tensors; {num_samples} samples; ", end="")
                print(f"garbage collection {found['collected']:.1f} ms")
                for part, milliseconds in table_of(found):
                    print(f"{part:<36}{milliseconds:>8.1f} ms{1000 * milliseconds / entries:>8.1f} us per record")
                for line, count in found["lines"]:
                    print(f"{count / 1e6:>7.1f} {line}")


if __name__ == "__main__":
    main()
