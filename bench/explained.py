"""Whether manifests explain what locate finds: trainings that differ in one planted setting of their configuration.

    python bench/explained.py [NAME ...]

Prints a table: the planted difference, the verdict, where the fault was located, which difference comes first and
whether it explains the fault, at which place the planted one is, and how many others can change results.
"""

import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path

from msprobe_core.config_check.differences import Severity
from msprobe_core.locate import locate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from configured_runs import PLANTED, record


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print("| planted | verdict | located | first difference | explains | place | others above info |")
    print("|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or PLANTED:
        show(name)


def show(name: str) -> None:
    planted = PLANTED[name]
    with tempfile.TemporaryDirectory() as directory:
        sides = [record(Path(directory) / side, planted, is_target=side == "target") for side in ("target", "golden")]
        began = time.perf_counter()
        result = locate(*sides)
        seconds = time.perf_counter() - began
    every = [each for each in result.configuration.explained if each.difference.severity is not Severity.INFO]
    paths = [each.difference.path for each in every]
    places = [i for i, path in enumerate(paths, 1) if planted.expected and path.endswith(planted.expected)]
    first = result.suspects[0] if result.suspects else None
    where = "" if first is None else f"{first.kind.value}: {first.entry} in {(first.parents or ['-'])[0]}"
    degree = "" if not every or every[0].explanation is None else every[0].explanation.degree.value
    others = len(every) - bool(places)
    shown = [name, result.verdict.value, where, paths[0] if paths else "", degree, places[0] if places else "", others]
    print(f"| {' | '.join(map(str, shown))} |", f"<!-- {seconds:.1f} s -->" if seconds > 60 else "", flush=True)


if __name__ == "__main__":
    main()
