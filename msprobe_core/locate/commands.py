"""What to run next: the narrowest recording, or the command, that says more about a suspect."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import msgspec

from msprobe_core import names
from msprobe_core.compare.result import Mode
from msprobe_core.locate.result import FaultKind, Suspect

_BY_LOOKING = {
    FaultKind.PARAMETER: "compare the checkpoints that the two runs began with",
    FaultKind.INPUT_DATA: "compare what the two data loaders yield for this step and rank",
    FaultKind.RANDOMNESS: "seed both runs alike (seed_all), or switch dropout off",
}


def with_command(
    suspect: Suspect, mode: Mode, target: Path, golden: Path, *, is_foreign: bool = False, is_confirmed: bool = False
) -> Suspect:
    """Return a suspect with the command that says more about it.

    Args:
        suspect: The suspect.
        mode: What was compared.
        target: The run under test, as given.
        golden: The trusted run, as given.
        is_foreign: Whether the two are of different frameworks; a call is made again within one only.
        is_confirmed: Whether calls were made again already.
    """
    if names.is_saved(suspect.entry):
        command = "save more values between this one and the last one that is right, then compare them"
        return replace(suspect, command=command)
    if suspect.kind in _BY_LOOKING:
        return replace(suspect, command=_BY_LOOKING[suspect.kind])
    if mode is Mode.TENSOR and not (is_foreign or is_confirmed):
        command = shlex.join(["msprobe", "locate", str(target), str(golden), "--confirm"])
        return replace(suspect, command=command)
    if mode is Mode.TENSOR:
        # A table of every value: which elements differ, and by how much.
        return replace(suspect, command=shlex.join(["msprobe", "compare", "-tp", str(target), "-gp", str(golden)]))
    config = msgspec.json.encode(_narrowest(suspect)).decode()
    if is_foreign:
        return replace(suspect, command=f"record both runs again with {config}, then compare them")
    return replace(suspect, command=f"record both runs again with {config}, then locate with --confirm")


def _narrowest(suspect: Suspect) -> dict[str, object]:
    """Return the configuration that records whole tensors of no more than the suspect's module."""
    is_call_in_module = not names.is_module(suspect.entry) and suspect.module is not None and suspect.parents
    stem = names.stem_of(suspect.parents[0] if is_call_in_module else suspect.entry)
    return {
        "task": "tensor",
        "level": "mix",
        "step": [] if suspect.step is None else [suspect.step],
        "rank": list(suspect.ranks)[:1],
        "tensor": {"list": [] if stem is None else [stem]},
    }
