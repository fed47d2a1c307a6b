"""Results of compare and locate on healthy pairs of MindSpore and PyTorch, and on faults in one of them.

    .venv-mindspore/bin/python -m bench.cross [healthy] [faults] [--levels L0,mix] [--pairs BERT,GPT] [--half]

A healthy pair is one model in both frameworks with equal weights and batches, trained for two steps, recorded at each
level, and compared with MindSpore as target and the other way round: every reported fault is a false alarm. Faults
are planted into MindSpore's model; the answer is right if the first suspect is in the faulty module. Both print a
Markdown table. ``--half``: healthy pairs in float16, without models that normalise over a batch, because MindSpore's
float16 kernel on the CPU does not update their running statistics. It has hardly any bfloat16 kernels on the CPU.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.cross.families import PAIRS, Pair
from bench.cross.faults import FAULTS, Fault
from bench.cross.recording import Mode, record, state_of, training_of
from msprobe_core.compare import compare_dumps
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.locate import FaultKind, LocateOptions, LocateResult, LocateVerdict, locate

BY_ROUNDING = LocateOptions(compare=CompareOptions(noise=NoiseModel()))
WITHOUT_HALF = ("ResNet", "DCGAN", "MobileNet", "layer")


def main() -> None:
    """Record and print."""
    arguments = _arguments()
    logging.disable(logging.WARNING)
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        if "healthy" in arguments.what:
            _print_healthy(Path(work), arguments)
        if "faults" in arguments.what:
            _print_faults(Path(work), arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["healthy", "faults"], help="healthy, faults (both)")
    parser.add_argument("--levels", default="L0,mix", help="L0, L1, mix; tensor: mix with whole tensors (%(default)s)")
    parser.add_argument("--pairs", default="", help="parts of names of pairs, comma-separated (all)")
    parser.add_argument("--half", action="store_true", help="healthy pairs in float16")
    return parser.parse_args()


def _wanted(name: str, arguments: argparse.Namespace) -> bool:
    return any(part in name for part in arguments.pairs.split(","))


def _mode(level: str, arguments: argparse.Namespace) -> Mode:
    is_tensor = level == "tensor"
    dtype = "float16" if arguments.half else "float32"
    return Mode("mix" if is_tensor else level, "tensor" if is_tensor else "statistics", dtype)


def _print_healthy(work: Path, arguments: argparse.Namespace) -> None:
    print(
        "| family | pairs | comparisons | calls | called faulty by locate | by compare, first step | beyond rounding |"
    )
    print("|---|---|---|---|---|---|---|")
    families: dict[str, list[Pair]] = defaultdict(list)
    for pair in PAIRS.values():
        if _wanted(pair.name, arguments) and not (arguments.half and pair.family in WITHOUT_HALF):
            families[pair.family].append(pair)
    totals = [0] * 6
    for family, pairs in families.items():
        counts = [len(pairs), 0, 0, 0, 0, 0]
        for pair in pairs:
            for level in arguments.levels.split(","):
                own = [
                    _recorded(work, framework, pair, _mode(level, arguments)) for framework in ("mindspore", "pytorch")
                ]
                for target, golden in (own, own[::-1]):
                    result = locate(target, golden, BY_ROUNDING)
                    first = compare_dumps(target / "step0", golden / "step0")
                    is_wrong = result.verdict is LocateVerdict.FAULT
                    added = (0, 1, result.num_nodes, is_wrong, not first.agrees, result.num_flagged)
                    counts = [a + b for a, b in zip(counts, added, strict=True)]
                    if is_wrong:
                        print(f"{pair.name} {level}: {_shown(result)}", file=sys.stderr)
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        note = "" if pairs[0].is_tuned else " *"
        print(f"| {family}{note} | " + " | ".join(f"{count:,}" for count in counts) + " |", flush=True)
    print("| in all | " + " | ".join(f"{count:,}" for count in totals) + " |")


def _recorded(work: Path, framework: str, pair: Pair, mode: Mode, fault: Fault | None = None) -> Path:
    place = work / f"{framework}-{pair.name}-{mode.level}-{mode.task}-{fault.name if fault else ''}".replace(" ", "_")
    if not place.exists():
        training = training_of(framework, pair, state_of(pair), mode.dtype)
        if fault is not None:
            fault.plant(training)
        record(framework, pair, training, place, mode)
    return place


def _shown(result: LocateResult) -> str:
    suspect = result.suspects[0]
    return f"step {suspect.step}, {suspect.entry}, {suspect.kind.value}, {suspect.excess:.3g}: {suspect.reason}"


def _print_faults(work: Path, arguments: argparse.Namespace) -> None:
    print("| fault | model | " + " | ".join(arguments.levels.split(",")) + " |")
    print("|---|---|" + "---|" * len(arguments.levels.split(",")))
    found: list[str] = []
    for fault in FAULTS:
        if _wanted(fault.pair, arguments):
            cells = list(_answers(work, fault, arguments))
            found += cells
            print(f"| {fault.name} | {fault.pair} | " + " | ".join(cells) + " |", flush=True)
    named = sum(cell.startswith("named") for cell in found)
    print(f"\nnamed first: {named} of {len(found)}, not detected: {found.count('not seen')}")


def _answers(work: Path, fault: Fault, arguments: argparse.Namespace) -> Iterator[str]:
    pair = PAIRS[fault.pair]
    for level in arguments.levels.split(","):
        golden = _recorded(work, "pytorch", pair, _mode(level, arguments))
        result = locate(_recorded(work, "mindspore", pair, _mode(level, arguments), fault), golden, BY_ROUNDING)
        if not result.suspects:
            yield "not seen"
            continue
        first = result.suspects[0]
        owner = "optimizer" if first.kind is FaultKind.OPTIMIZER else first.module
        is_right = "any" in fault.modules or owner in fault.modules or first.module in fault.modules
        yield f"named: {first.kind.value}" if is_right else f"{first.entry}"


if __name__ == "__main__":
    main()
