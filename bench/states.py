"""Compare states of a training program, each in a separate process, with the states alternating.

The result is the least of the medians of a state's rounds: other load on the machine can only increase times.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence


def measure_in_turn(
    script: str, states: Iterable[str], num_rounds: int, options: Sequence[str]
) -> dict[str, list[float]]:
    """Return the medians of each state, one per round, in ms.

    Args:
        script: Path of a program that prints the times of steps in seconds, as a JSON list in its last line.
        states: Values of the program's option ``--state``.
        num_rounds: Number of runs of each state.
        options: Further options of the program.
    """
    medians: dict[str, list[float]] = {state: [] for state in states}
    for _ in range(num_rounds):
        for state, found in medians.items():
            command = [sys.executable, script, "--state", state, *options]
            with tempfile.TemporaryDirectory() as directory:
                done = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=True)
            found.append(1000 * statistics.median(json.loads(done.stdout.splitlines()[-1])))
    return medians
