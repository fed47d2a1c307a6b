"""What ``msprobe bisect-steps`` finds in trainings of hundreds of steps, also of two processes, and what that costs.

    python -m bench.deep_runs [--kind one|ddp|fsdp] [--kernels same|other] [--healthy] [--work DIR] [--wrong-from 300]

Both sides of `bench.deep_training` are trained, with checkpoints each forty steps, unless ``--work`` has them; then the
command searches the first wrong step. Prints a row of a table.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SETTINGS = {
    "task": "statistics", "level": "mix", "dump_path": "unused", "dump_enable": False,
    "statistics": {"summary_mode": "sketch"},
}  # fmt: skip


def main() -> None:
    """Train, search and print."""
    asked = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        work = (asked.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        settings = work / "config.json"
        settings.write_text(json.dumps(_SETTINGS))
        launcher = [sys.executable]
        if asked.kind != "one":
            launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        golden = [*launcher, "-m", "bench.deep_training", str(settings), "--kind", asked.kind]
        target = [*golden, "--kernels", asked.kernels]
        target += [] if asked.healthy else ["--wrong-from", str(asked.wrong_from)]
        sides = {"golden": golden, f"{asked.kernels}-{'healthy' if asked.healthy else asked.wrong_from}": target}
        places = [_trained(command, work / f"{asked.kind}-{name}") for name, command in sides.items()]
        print(_row(asked, _searched(golden, target, places, work / f"{places[1].name}-found")))


def _trained(command: list[str], place: Path) -> Path:
    if not place.exists():
        part = place.with_name(f"{place.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        _run([*command, "--save", str(part)])
        part.rename(place)
    return place


def _searched(golden: list[str], target: list[str], places: list[Path], out: Path) -> dict[str, object]:
    """Return what the command has found, with its wall time."""
    command = [sys.executable, "-m", "msprobe_core", "bisect-steps", "-o", str(out)]
    for side, training, place in (("golden", golden, places[0]), ("target", target, places[1])):
        command += [f"--{side}", shlex.join([*training, "--resume", "{checkpoint}"])]
        command += [f"--{side}-checkpoints", f"{place}/step-{{step}}"]
    began = time.monotonic()
    _run(command)
    return {**json.loads((out / "bisect_steps.json").read_bytes()), "seconds": time.monotonic() - began}


def _run(command: list[str]) -> None:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr[-2000:])


def _row(asked: argparse.Namespace, found: dict[str, object]) -> str:
    cost = found["cost"]
    assert isinstance(cost, dict)
    what = f"step {found['step']}, {found['entry']}, ranks {found['ranks']}" if found["step"] else found["verdict"]
    cells = (asked.kind, asked.kernels, *(cost[name] for name in ("checkpoints", "replays", "steps", "windows")), what)
    return f"| {' | '.join(map(str, cells))} | {found['seconds']:,.0f} s |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.deep_runs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=("one", "ddp", "fsdp"), default="one")
    parser.add_argument("--kernels", choices=("same", "other"), default="same", help="of the target (%(default)s)")
    parser.add_argument("--healthy", action="store_true", help="no fault in the target")
    parser.add_argument("--wrong-from", type=int, default=300, help="first step with the fault (%(default)s)")
    parser.add_argument("--work", type=Path, help="keeps trainings and results there; a temporary directory by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
