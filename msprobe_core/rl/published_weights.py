"""The variables, files and criteria of the published guide for checks of weights, in terms of hops.

``UWC_ENABLE=1`` switches logs on, ``UWC_STAGE1`` to ``UWC_STAGE3`` leave stages out with 0, ``UWC_DUMP_DIR`` is the
directory. Instead of whole tensors, fingerprints are written. ``UWC_PTR_CHECK`` has no effect: an engine that copies
weights into its memory never changes its pointers, so what it has is compared instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe_core.rl.outcome import Outcome
from msprobe_core.rl.weight_log import Hop
from msprobe_core.store.atomic_file import write_json
from msprobe_core.store.layout import make_directory

_OFF = {"", "0", "false", "no", "off"}

STAGES: Mapping[str, tuple[tuple[Hop, Hop], ...]] = {
    "stage1_bridge": ((Hop.DISK, Hop.EXPORTED),),
    "stage2_transfer": ((Hop.SHARD, Hop.GATHERED), (Hop.GATHERED, Hop.SENT), (Hop.SHARD, Hop.SENT),
                        (Hop.SENT, Hop.RECEIVED)),
    "stage3_vllm": ((Hop.SENT, Hop.LOADED), (Hop.RECEIVED, Hop.LOADED), (Hop.LOADED, Hop.AWAKE)),
}  # fmt: skip
"""The guide's stages, and the hops that each compares."""


@dataclass(frozen=True)
class PublishedPlaces:
    """What the variables ask for.

    Attributes:
        path: Directory of all logs.
        hops: Hops to log.
    """

    path: Path
    hops: tuple[Hop, ...]


def places_asked_for(environment: Mapping[str, str] = os.environ) -> PublishedPlaces | None:
    """Return what the variables ask for; ``None`` if they ask for nothing."""
    if environment.get("UWC_ENABLE", "").strip().lower() in _OFF:
        return None
    wanted = {hop for number, pairs in enumerate(STAGES.values(), 1) for pair in pairs for hop in pair
              if environment.get(f"UWC_STAGE{number}", "1").strip().lower() not in _OFF}  # fmt: skip
    path = Path(environment.get("UWC_DUMP_DIR", "").strip() or "uwc_dump").expanduser().absolute()
    return PublishedPlaces(path, tuple(hop for hop in Hop if hop in wanted))


def write_reports(outcome: Outcome, directory: Path) -> list[Path]:
    """Write ``stage*/report.json`` and ``summary.json``; return their paths.

    Args:
        outcome: Of `msprobe_core.rl.weight_chain.compare_chain`.
        directory: Where they are written.

    Raises:
        StoreError: they cannot be written.
    """
    pairs: Any = outcome.numbers["pairs"]
    reports = {stage: _report(stage, pairs) for stage in STAGES}
    paths: list[Path] = []
    for stage, report in reports.items():
        make_directory(directory / stage, below=directory)
        paths.append(directory / stage / "report.json")
        write_json(paths[-1], report)
    paths.append(directory / "summary.json")
    passed = {stage: report["status"] for stage, report in reports.items()}
    write_json(paths[-1], {"version": 1, "passed": outcome.agrees, "headline": outcome.headline, "stages": passed})
    return paths


def _report(stage: str, pairs: list[dict[str, Any]]) -> dict[str, Any]:
    wanted = {(before.value, hop.value) for before, hop in STAGES[stage]}
    own = [pair for pair in pairs if (pair["before"], pair["hop"]) in wanted]
    total, wrong = sum(pair["tensors"] for pair in own), sum(pair["wrong"] for pair in own)
    status = "SKIP" if not own else "FAIL" if wrong else "PASS"
    return {"version": 1, "stage": stage, "status": status, "equal": total - wrong, "total": total, "hops": own}
