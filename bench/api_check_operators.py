"""Record the operators of PyTorch's own test database with healthy kernels, and check each recorded call.

    python -m bench.api_check_operators [--samples 3] [--every 1] [--dtypes float32,bfloat16,float16] [--only SUBSTRING]

Every operator of ``torch.testing._internal``'s database is called with some of its sample inputs, forward and backward,
while it is recorded; every recorded call is then checked by itself. All of them are right by definition, up to faults
of this PyTorch: what is called wrong is listed with what decides, and so is every function that does not agree with
its independent formula. Prints the counts of verdicts per dtype. ``--every 8`` takes each eighth operator.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db

from msprobe_core.api_check.dump_check import CheckOptions, DumpCheck
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.replay.replay_codes import ReplayCode

_MOST_ELEMENTS = 1 << 16


def call_all(dtype: torch.dtype, num_samples: int, only: str, every: int) -> Iterator[str]:
    """Call each operator with samples, forward and backward; yield the names of those that were called."""
    for operator in op_db[::every]:
        if only not in operator.name or dtype not in operator.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        differentiates = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu")
        try:
            samples = list(operator.sample_inputs("cpu", dtype, requires_grad=differentiates))
        except Exception as error:  # noqa: BLE001  Its samples may need what is not installed.
            print(f"  no samples of {operator.name}: {type(error).__name__}")
            continue
        # The last ones are often the unusual ones.
        chosen = samples if len(samples) <= num_samples else [*samples[: num_samples - 1], samples[-1]]
        for sample in chosen:
            with contextlib.suppress(Exception):  # some samples are there to fail
                _call(operator.op, sample, differentiates)
        yield operator.name


def _call(function: Any, sample: Any, differentiates: bool) -> None:
    result = function(sample.input, *sample.args, **sample.kwargs)
    if not differentiates:
        return
    results = result if isinstance(result, (tuple, list)) else [result]
    ends = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
    if ends and sum(each.numel() for each in ends) <= _MOST_ELEMENTS:
        torch.autograd.backward(ends, [torch.randn_like(each) for each in ends])


def main() -> None:
    """See the module's docstring."""
    from msprobe.pytorch import PrecisionDebugger

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="distance of the operators that are taken")
    parser.add_argument("--dtypes", default="float32,bfloat16,float16")
    parser.add_argument("--only", default="")
    parser.add_argument("--reasons", action="store_true", help="also print why calls were not checked")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "config.json"
        settings = {"task": "tensor", "level": "L1", "dump_path": place, "risk_level": "ALL"}
        config.write_text(json.dumps(settings))
        debugger = PrecisionDebugger(str(config))
        for step, name in enumerate(options.dtypes.split(",")):
            debugger.start()
            called = list(call_all(getattr(torch, name), options.samples, options.only, options.every))
            debugger.stop()
            debugger.step()
            _check(name, next((Path(place) / f"step{step}").rglob("dump.json")).parent, len(called), options.reasons)


def _check(dtype: str, dump: Path, num_operators: int, shows_reasons: bool) -> None:
    begin = time.perf_counter()
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    check = DumpCheck.of(dump, CheckOptions(measures_power=False))
    for found in check.run(workers=0):
        counts[found.verdict.value] += 1
        if found.reason is not None:
            reasons[f"{found.entry.split('.')[1]}: {found.reason.text[:150]}"] += 1
        if any(note.code is ReplayCode.FUNCTION_IS_OFF for note in found.notes):
            print(f"  {found.entry} does not agree with its formula: {found.notes}")
        if found.verdict in (Verdict.WRONG, Verdict.ILL_CONDITIONED) and found.worst is not None:
            worst = found.worst
            off = f"own {worst.own_error}" if worst.own_error is None else f"own {worst.own_error:.2g}"
            print(
                f"  {found.entry} {found.verdict.value} x{worst.times:.3g} error {worst.error:.2g} {off} {worst.reason}"
            )
            for note in found.notes:
                print(f"    {note}")
    judged = sum(counts.values()) - counts[Verdict.CANNOT_TELL.value]
    share = counts[Verdict.WRONG.value] / max(judged, 1)
    seconds = time.perf_counter() - begin
    print(f"{dtype}: {num_operators} operators, {dict(counts)}, wrong {share:.3%} of {judged} judged, {seconds:.0f} s")
    if shows_reasons:
        for reason, count in reasons.most_common():
            print(f"  {count:5} {reason}")


if __name__ == "__main__":
    main()
