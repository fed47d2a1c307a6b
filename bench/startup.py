"""Time the start of the command line, as whole processes, and print a table.

python bench/startup.py [--runs 11] [--against /path/to/other/bin/msprobe]
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--against", help="another msprobe command, run in turn with ours")
    arguments = parser.parse_args()
    ours = shutil.which("msprobe", path=str(Path(sys.executable).parent))
    if ours is None:
        raise SystemExit("install msprobe-core first")
    commands = {"ours": ours} | ({"other": arguments.against} if arguments.against else {})
    print(f"{'arguments':<20}{'command':<8}{'median s':>9}{'min':>7}{'max':>7}")
    for options in (["--version"], ["--help"], ["compare", "--help"]):
        walls: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(arguments.runs):
            for name, command in commands.items():
                begin = time.perf_counter()
                subprocess.run([command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
                walls[name].append(time.perf_counter() - begin)
        for name, times in walls.items():
            median = statistics.median(times)
            print(f"{' '.join(options):<20}{name:<8}{median:>9.3f}{min(times):>7.3f}{max(times):>7.3f}")


if __name__ == "__main__":
    main()
