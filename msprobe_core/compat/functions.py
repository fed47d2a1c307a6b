"""Compare from a script with the functions of published tutorials: `compare` and `compare_distributed` of mstt 8.x.

::

    from msprobe.pytorch import compare, compare_distributed

    compare({"npu_json_path": "npu/dump.json", "bench_json_path": "gpu/dump.json"}, "output")
    compare_distributed("npu_dump/step0", "gpu_dump/step0", "output")

Scripts find the result files that they expect: a spreadsheet with the columns of 8.x, and a file of advice. The
returned object holds the findings.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeAlias

from msprobe_core.compare.mapping import Matching
from msprobe_core.compare.mapping_files import OptionalFile, read_matching
from msprobe_core.compare.result import ComparisonResult, UnitSummary
from msprobe_core.compare.run import RunOptions, compare_run
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.compat.formats import GENERATION_A, GENERATION_C
from msprobe_core.errors import ConfigError, ConflictingSettingsError, MissingPathError, UnknownFieldError
from msprobe_core.model import ExecutorOptions
from msprobe_core.report.files import ReportFiles, ResultFiles, TableForm, TableOptions, time_stamp

_logger = logging.getLogger(__name__)

_Path: TypeAlias = "str | os.PathLike[str]"

_TARGET = ("npu_json_path", "npu_path")
_GOLDEN = ("bench_json_path", "bench_path")
_STACK = ("stack_json_path", "stack_path")
_KNOWN = (*_TARGET, *_GOLDEN, *_STACK, "is_print_compare_log")


@dataclass(frozen=True)
class Comparison(ComparisonResult[UnitSummary]):
    """The findings of a comparison, and the paths of its tables and its summary.

    Attributes:
        files: Paths of the result files.
    """

    files: ReportFiles = field(kw_only=True)


def compare(
    input_param: Mapping[str, object],
    output_path: _Path,
    stack_mode: bool = False,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
    highlight: bool = False,
    *,
    data_mapping: _Path | None = None,
    cell_mapping: OptionalFile = None,
    api_mapping: OptionalFile = None,
    layer_mapping: OptionalFile = None,
    executor: str = "inline",
    workers: int | None = None,
) -> Comparison:
    """Compare two dumps, or two directories of steps or runs, and write a spreadsheet for each pair.

    Args:
        input_param: ``npu_json_path``, the run under test, and ``bench_json_path``, the trusted one (``npu_path`` and
            ``bench_path`` mean the same); ``stack_json_path`` if the target's stacks are not next to its dump;
            ``is_print_compare_log`` is accepted and ignored.
        output_path: Directory for the results; created if it is missing.
        stack_mode: Add a column with the call stacks.
        auto_analyze: Write ``advisor_{time}.txt``, which names the first suspicious row of the call at which the
            dumps diverge, and says what to examine.
        fuzzy_match: Also pair calls with different indices.
        highlight: Colour rows by the rules of 8.x instead of our verdict.
        data_mapping: File that pairs names of rows.
        cell_mapping: File that pairs names of modules; ``True`` pairs them by their paths.
        api_mapping: File that pairs names of APIs; ``True`` uses the maps of the plugins.
        layer_mapping: File that pairs names of layers; ``True`` pairs them by their paths.
        executor: Executor for several pairs; ``processes`` needs a script with ``if __name__ == "__main__":``.
        workers: Number of pairs compared at a time, for executors that support it.

    Returns: the findings; ``agrees`` and ``first_fault`` summarise them, ``files`` has the paths.

    Raises:
        ConfigError: a setting is unknown or missing.
        CompareError: the two cannot be compared.
        DumpError: a dump cannot be read.
        StoreError: a result cannot be written.
    """
    matching = read_matching(
        is_fuzzy=fuzzy_match,
        data_mapping=data_mapping,
        cell_mapping=cell_mapping,
        api_mapping=api_mapping,
        layer_mapping=layer_mapping,
    )
    target, golden, stacks = _inputs(input_param)
    return _compare(
        target,
        golden,
        Path(output_path),
        _tables(has_stacks=stack_mode, has_advice=auto_analyze, has_highlights=highlight),
        _options(stacks, matching),
        RunOptions(executor=executor, workers=ExecutorOptions(workers=workers)),
    )


def compare_pair(
    input_param: Mapping[str, object],
    output_path: _Path,
    *,
    xlsx: bool = False,
    fuzzy_match: bool = False,
    data_mapping: _Path | None = None,
    cell_mapping: OptionalFile = None,
    api_mapping: OptionalFile = None,
    layer_mapping: OptionalFile = None,
    is_print_compare_log: bool = True,
) -> Comparison:
    """Compare two dumps like ``pt_compare`` and ``ms_compare`` of 26.x, and write a table with the columns of 26.x.

    Args:
        input_param: See `compare`.
        output_path: See `compare`.
        xlsx: Write a spreadsheet instead of csv.
        fuzzy_match: See `compare`.
        data_mapping: See `compare`.
        cell_mapping: See `compare`.
        api_mapping: See `compare`.
        layer_mapping: See `compare`.
        is_print_compare_log: Accepted and ignored.

    Returns: the findings.

    Raises:
        ConfigError: a setting is unknown or missing.
        CompareError: the two cannot be compared.
        DumpError: a dump cannot be read.
        StoreError: a result cannot be written.
    """
    del is_print_compare_log
    matching = read_matching(
        is_fuzzy=fuzzy_match,
        data_mapping=data_mapping,
        cell_mapping=cell_mapping,
        api_mapping=api_mapping,
        layer_mapping=layer_mapping,
    )
    target, golden, stacks = _inputs(input_param)
    form = TableForm.XLSX if xlsx else TableForm.CSV
    tables = TableOptions(stamp=time_stamp(), form=form, layout=GENERATION_C)
    return _compare(target, golden, Path(output_path), tables, _options(stacks, matching), RunOptions())


def compare_distributed(
    npu_dump_dir: _Path,
    bench_dump_dir: _Path,
    output_path: _Path,
    *,
    stack_mode: bool = False,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
    highlight: bool = False,
    is_print_compare_log: bool = True,
    data_mapping: _Path | None = None,
    cell_mapping: OptionalFile = None,
    api_mapping: OptionalFile = None,
    layer_mapping: OptionalFile = None,
    executor: str = "inline",
    workers: int | None = None,
) -> Comparison:
    """Compare the ranks of two steps, paired by rank, or the steps of two runs; write a spreadsheet for each pair.

    Args:
        npu_dump_dir: Step or run under test, such as ``dump/step0``.
        bench_dump_dir: The trusted one, of the same kind.
        output_path: Directory for the results; created if it is missing.
        stack_mode: See `compare`.
        auto_analyze: See `compare`.
        fuzzy_match: See `compare`.
        highlight: See `compare`.
        is_print_compare_log: Accepted and ignored.
        data_mapping: See `compare`.
        cell_mapping: See `compare`.
        api_mapping: See `compare`.
        layer_mapping: See `compare`.
        executor: See `compare`.
        workers: See `compare`.

    Returns: the findings; ``missing`` lists ranks that could not be compared.

    Raises:
        ConfigError: a setting is invalid.
        CompareError: there is nothing to compare.
        StoreError: a result cannot be written.
    """
    del is_print_compare_log
    matching = read_matching(
        is_fuzzy=fuzzy_match,
        data_mapping=data_mapping,
        cell_mapping=cell_mapping,
        api_mapping=api_mapping,
        layer_mapping=layer_mapping,
    )
    return _compare(
        Path(npu_dump_dir),
        Path(bench_dump_dir),
        Path(output_path),
        _tables(has_stacks=stack_mode, has_advice=auto_analyze, has_highlights=highlight),
        _options(None, matching),
        RunOptions(executor=executor, workers=ExecutorOptions(workers=workers)),
    )


def _compare(
    target: Path, golden: Path, directory: Path, tables: TableOptions, options: CompareOptions, run: RunOptions
) -> Comparison:
    result, files = compare_run(target, golden, ResultFiles(directory, tables), options=options, run=run)
    _logger.info("compared %s with %s: %s", target, golden, files.summary)
    found = {part.name: getattr(result, part.name) for part in fields(ComparisonResult)}
    return Comparison(**found, files=files)


def _tables(*, has_stacks: bool, has_advice: bool, has_highlights: bool) -> TableOptions:
    return TableOptions(
        stamp=time_stamp(),
        form=TableForm.XLSX,
        layout=GENERATION_A,
        has_stacks=has_stacks,
        has_highlights=has_highlights,
        has_advice=has_advice,
    )


def _options(stacks: Path | None, matching: Matching) -> CompareOptions:
    # A directory of stacks is the dump's own, where the stacks are found without the option.
    return CompareOptions(stack_path=stacks if stacks is not None and stacks.is_file() else None, matching=matching)


def _inputs(input_param: Mapping[str, object]) -> tuple[Path, Path, Path | None]:
    """Return the target, the golden run, and the target's stacks if they are elsewhere.

    Raises:
        ConfigError: a field is unknown or missing.
        CompareError: the file of stacks does not exist.
    """
    unknown = [str(key) for key in input_param if key not in _KNOWN]
    if unknown:
        raise UnknownFieldError(f"input_param: unknown field {unknown[0]!r}; known are {', '.join(_KNOWN)}")
    stacks = _given(input_param, _STACK)
    if stacks is not None and not stacks.exists():
        raise MissingPathError(f"{stacks}: does not exist, and input_param gives it as '{_STACK[0]}'")
    return _required(input_param, _TARGET), _required(input_param, _GOLDEN), stacks


def _required(input_param: Mapping[str, object], names: tuple[str, ...]) -> Path:
    path = _given(input_param, names)
    if path is None:
        raise ConfigError(f"input_param: '{names[0]}' is missing; give the path of a dump.json")
    return path


def _given(input_param: Mapping[str, object], names: tuple[str, ...]) -> Path | None:
    """Return the path under one of several names of the same setting; ``None`` if there is none.

    Raises:
        ConfigError: it is not a path, or two names are given.
    """
    found = {name: value for name in names if (value := input_param.get(name)) is not None and value != ""}
    for name, value in found.items():
        if not isinstance(value, str | os.PathLike):
            raise ConfigError(f"input_param: {name!r} is {value!r}, and must be a path")
    if len(found) > 1:
        raise ConflictingSettingsError(f"input_param: {' and '.join(map(repr, found))} mean the same; give one of them")
    return next((Path(str(value)) for value in found.values()), None)
