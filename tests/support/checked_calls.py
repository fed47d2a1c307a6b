"""Verdicts on calls as a check of a dump gives them, written by hand."""

from __future__ import annotations

import math
from typing import Any

from msprobe_core.api_check.verdict import CallVerdict, Inputs, Mutant, OutputVerdict, PublishedColumns, Verdict
from msprobe_core.findings import Finding, Level, noted
from msprobe_core.model import Phase
from msprobe_core.replay.replay_codes import ReplayCode

MUTANTS = tuple(Mutant)


def output(verdict: Verdict = Verdict.RIGHT, times: float = 0.25, **fields: Any) -> OutputVerdict:
    """Return the verdict on one output, off by so many allowances of 1e-6."""
    is_off = times > 1
    defaults: dict[str, Any] = {
        "path": "0",
        "side": "recorded",
        "dtype": "float32",
        "shape": (4, 8),
        "reason": Finding(ReplayCode.OUTPUT_OFF, Level.ERROR, {"times": times})
        if is_off
        else Finding(ReplayCode.OUTPUT_ROUNDED),
        "error": times * 1e-6,
        "rounding": 1e-6,
        "condition": 2e-7,
        "own_error": 3e-7,
        "amplification": 1.5,
        "worst_index": (2, 5),
        "bias": 0.5,
        "applied": MUTANTS,
        "accepted": (),
        "published": PublishedColumns(cosine=0.999, max_absolute=1e-7, plain_status="pass"),
    }
    return OutputVerdict(verdict=verdict, times=times, **(defaults | fields))


def call(entry: str, verdict: Verdict = Verdict.RIGHT, times: float = 0.25, **fields: Any) -> CallVerdict:
    """Return the verdict on a call with one output."""
    api, _, phase = entry.rpartition(".")
    made = {"outputs": (output(verdict, times),)} | fields
    return CallVerdict(entry=entry, api=api, phase=Phase(phase), verdict=verdict, **made)


def not_checked(entry: str, reason: Finding) -> CallVerdict:
    """Return that a call was not checked."""
    return call(entry, Verdict.CANNOT_TELL, outputs=(), reason=reason)


def statistics_only(entry: str) -> CallVerdict:
    """Return that a call was not checked because the dump has no tensors."""
    fields = {"value": "0", "entry": entry}
    return not_checked(entry, Finding(ReplayCode.STATISTICS_ONLY, Level.WARNING, fields))


def some_calls() -> list[CallVerdict]:
    """Return calls with every verdict."""
    weak = output(accepted=MUTANTS[:4], dtype="bfloat16")
    wrong = output(Verdict.WRONG, 320.0, bias=-9.5)
    ill = output(Verdict.ILL_CONDITIONED, 0.75, condition=1e-3, amplification=5000.0, accepted=MUTANTS[2:4])
    infinite = output(Verdict.WRONG, math.inf, error=math.nan, worst_index=None, bias=None)
    return [
        call("Functional.embedding.0.forward", position=0, reach=9, stage=1),
        call("Functional.softmax.0.forward", position=1, reach=7, outputs=(weak,)),
        call("Functional.softmax.1.forward", Verdict.WRONG, position=2, reach=6, stage=2, outputs=(wrong,)),
        call("Torch.sub.0.forward", Verdict.ILL_CONDITIONED, position=3, reach=0, stage=2, outputs=(ill,)),
        call("Torch.div.0.forward", Verdict.WRONG, position=4, reach=0, outputs=(output(), infinite)),
        call("Tensor.mul.0.forward", Verdict.SUSPECT, 40.0, position=5, inputs=Inputs.SYNTHETIC, seed=1234, reach=1),
        not_checked("Functional.dropout.0.forward", noted("it draws random numbers")),
        not_checked("Functional.dropout.1.forward", noted("it draws random numbers")),
        statistics_only("Tensor.view.0.forward"),
        call("Functional.linear.0.backward", position=9, reach=3, outputs=(output(), output(path="1", side="cuda:0"))),
    ]
