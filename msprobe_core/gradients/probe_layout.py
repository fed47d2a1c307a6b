"""Where the files of the task ``grad_probe`` are.

::

    {dump_path}/rank{R}/grad_summary_{K}.csv        statistics of each gradient of step K
    {dump_path}/rank{R}/step{K}/{parameter}.npy     whether its elements are positive, as booleans
    {dump_path}/rank{R}/counted/step{K}/{parameter}.npy     which of them count, as bits

The last is ours; see `COUNTED_SHARE`. Older tools write ``rank_{R}``, ``step_{K}`` and ``.pt`` too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from msprobe_core.errors import DumpError
from msprobe_core.gradients.gradients_codes import GradientCode
from msprobe_core.gradients.lacking import Lacking
from msprobe_core.store.layout import tensor_file_name

COUNTED_SHARE = 2.0**-8
"""Elements count if their magnitude exceeds this share of the root mean square of their gradient.

It is half of the distance of 1 to the next number of bfloat16. Rounding in bfloat16 gives results an error of about
that share of their usual magnitude, so that signs of smaller elements are random."""

COUNTED_DIRECTORY = "counted"

_RANK = re.compile(r"rank_?(\d{1,9})", re.ASCII)
_STEP = re.compile(r"step_?(\d{1,18})", re.ASCII)
_SUMMARY = re.compile(r"grad_summary_(\d{1,18})\.csv", re.ASCII)
_SUFFIXES = (".npy", ".pt")


def rank_directory(dump_path: Path, rank: int) -> Path:
    """Return the directory of a rank."""
    return dump_path / f"rank{rank}"


def summary_file(directory: Path, step: int) -> Path:
    """Return the table of a step in the directory of a rank."""
    return directory / f"grad_summary_{step}.csv"


def sign_file(directory: Path, step: int, parameter: str) -> Path:
    """Return the file of signs of a parameter's gradient."""
    return directory / f"step{step}" / tensor_file_name(parameter, ".npy")


def counted_file(directory: Path, step: int, parameter: str) -> Path:
    """Return the file that says which elements count."""
    return directory / COUNTED_DIRECTORY / f"step{step}" / tensor_file_name(parameter, ".npy")


def probed_ranks(path: Path) -> dict[int, Path]:
    """Return the directories of ranks in a directory that the task has written, or that are this directory itself.

    Raises:
        DumpError: it is no directory, or cannot be read.
    """
    return _ranks_with(path, probed_steps)


def tabled_ranks(path: Path) -> dict[int, Path]:
    """Return the same of directories that have tables of steps, with or without signs.

    Raises:
        DumpError: it is no directory, or cannot be read.
    """
    return _ranks_with(path, summary_steps)


def _ranks_with(path: Path, steps_in: Callable[[Path], Collection[int]]) -> dict[int, Path]:
    found = {
        int(match[1]): each for each in _directories_in(path)
        if (match := _RANK.fullmatch(each.name)) and steps_in(each)
    }  # fmt: skip
    if not found and steps_in(path):
        match = _RANK.fullmatch(path.name)
        found = {int(match[1]) if match else 0: path}
    return dict(sorted(found.items()))


def matched_ranks(
    target: Mapping[int, Path], golden: Mapping[int, Path], lacking: Lacking
) -> Iterator[tuple[int, Path, Path]]:
    """Yield the ranks that both trainings have, with their directories, and note the others."""
    if len(target) == len(golden) == 1:  # two directories of single ranks, whatever these are
        golden = dict(zip(target, golden.values(), strict=True))
    for rank in sorted(target.keys() ^ golden.keys()):
        lacking.note(GradientCode.RANK_MISSING, ranks=[rank], rank=rank)
    for rank in sorted(target.keys() & golden.keys()):
        yield rank, target[rank], golden[rank]


def matched_steps(rank: int, target: Iterable[int], golden: Iterable[int], lacking: Lacking) -> list[int]:
    """Return the steps of a rank that both trainings have, and note the others."""
    own, others = {*target}, {*golden}
    for step in sorted(own ^ others):
        lacking.note(GradientCode.STEPS_MISSING, rank=rank, step=step)
    return sorted(own & others)


def probed_steps(directory: Path) -> dict[int, Path]:
    """Return the directories of signs in the directory of a rank, by step.

    Raises:
        DumpError: it cannot be read.
    """
    found = {int(match[1]): each for each in _directories_in(directory) if (match := _STEP.fullmatch(each.name))}
    return {step: each for step, each in sorted(found.items()) if sign_files(each)}


def summary_steps(directory: Path) -> list[int]:
    """Return the steps of which there is a table.

    Raises:
        DumpError: the directory cannot be read.
    """
    return sorted(int(match[1]) for each in _entries_of(directory) if (match := _SUMMARY.fullmatch(each.name)))


def sign_files(directory: Path) -> dict[str, Path]:
    """Return the files of signs of a step, by the parameter's name or what its file is named.

    Raises:
        DumpError: the directory cannot be read.
    """
    return {each.name[: -len(each.suffix)]: each for each in _entries_of(directory) if each.suffix in _SUFFIXES}


def _directories_in(path: Path) -> list[Path]:
    return [each for each in _entries_of(path) if each.is_dir()]


def _entries_of(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DumpError(
            f"{path}: cannot be read ({reason}); give the directory that the gradients were recorded to"
        ) from error
