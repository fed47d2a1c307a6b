"""Further commands, which need no place: whether each says that something is wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.faults.answers import MSPROBE, TIMEOUT_S

INITIAL = "initial.pt"
MONITOR = "monitor"


def _says_wrong(*command: str | Path) -> bool | None:
    """Return whether a command finds something wrong; ``None`` if it cannot tell."""
    done = subprocess.run([MSPROBE, *command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return {0: False, 1: True}.get(done.returncode)


def config_check(target: Path, golden: Path, out: Path) -> bool | None:
    """Compare the configurations that both runs recorded."""
    return _says_wrong("config_check", "-c", golden, target, "-o", out)


def checkpoint(target: Path, golden: Path, out: Path) -> bool | None:
    """Compare what both runs began with."""
    sides = [run.with_name(f"{run.name}.{INITIAL}") for run in (target, golden)]
    return _says_wrong("checkpoint", "compare", *sides, "--optimizer", "--strict", "-o", out)


def reduction(target: Path, golden: Path, out: Path) -> bool | None:
    """Check the reductions of gradients that the monitor saw in the target."""
    del golden
    return _says_wrong("monitor", "reduction-check", target.with_name(f"{target.name}.{MONITOR}"), "-o", out)


CHECKS: dict[str, Callable[[Path, Path, Path], bool | None]] = {
    "config": config_check,
    "checkpoint": checkpoint,
    "reduction": reduction,
}
ALWAYS = ("config",)
"""Checks that apply to every kind; the others are named by a bug. None is for single calls: here these are right."""
