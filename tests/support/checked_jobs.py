"""Training jobs of several processes whose calls are checked while they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobs import train


def compare_checked_with_bare(rank: int, world: int, directory: Path, kind: str) -> dict[str, Any]:
    """Say whether a checked training is bit for bit what it is without, and what the check has found."""
    from msprobe.pytorch import PrecisionDebugger

    bare = train(kind, rank, world, None)
    config = directory / f"config{rank}.json"
    config.write_text(json.dumps({"task": "acc_check", "acc_check": {"budget": 1000, "seed": rank}}))
    debugger = PrecisionDebugger(config, dump_path=directory / "run")
    same = train(kind, rank, world, debugger) == bare
    debugger.close()
    coverage = json.loads((directory / "run" / f"acc_check_coverage_rank{rank}.json").read_text())
    return {"same": same, "verdicts": coverage["totals"]["verdicts"]}
