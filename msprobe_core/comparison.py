"""What plugins compare with, such as one for a trainer whose stages should agree: public.

Stages of a comparison: read dumps as frames, join them, add measures, judge by limits and noise, write tables.

* Comparing: `compare` and `compare_distributed` compare recorded runs and write the result files; use
  `msprobe_core.compare_dumps` for results in memory, each a `UnitResult`.
* Dumps: `read_dump` reads a dump, whose ``frame`` has one row per recorded value (`RowKind`).
* Measures: `add_statistics` and `with_measures` add columns to joined rows; `PairSums` computes them from two tensors.
* Limits and noise: what rounding explains, by `Precision`; `NoiseSource` says where a limit comes from. `Verdict` is
  the result.
* Weights: `compare_prints` compares the fingerprints of two models, tensor by tensor; a `TensorRow` has the `Relation`.
* Results: a `msprobe_core.plugin.Table` is written by `write_table`; `whole_file` writes a file as a
  whole or not at all.
* Commands: the options, the progress bar and the exit status that all comparing commands share; `rl_compare` and
  `rl_check` are the commands for runs of RL trainers, which a trainer's plugin may offer in a group of its own.

Names are imported on first use: this module imports neither polars nor click.
"""

from typing import TYPE_CHECKING

from msprobe_core.lazy import lazy_names

if TYPE_CHECKING:
    from msprobe_core.checkpoint.contents import Kind
    from msprobe_core.checkpoint.fingerprints import CheckpointPrint, TensorPrint, compare_prints
    from msprobe_core.checkpoint.result import TensorRow
    from msprobe_core.checkpoint.structure import Relation
    from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status
    from msprobe_core.cli.output_options import output_option, overwrite_option
    from msprobe_core.cli.progress import progress_bar
    from msprobe_core.cli.rl_check import rl_check
    from msprobe_core.cli.rl_compare import rl_compare
    from msprobe_core.cli.show import show
    from msprobe_core.compare.layouts.serving import served_path
    from msprobe_core.compare.mapping_files import read_matching
    from msprobe_core.compare.result import UnitResult
    from msprobe_core.compare.tensor_metrics import PairSums, Workspace
    from msprobe_core.compare.unit import CompareOptions
    from msprobe_core.compat.functions import compare, compare_distributed
    from msprobe_core.judge.limits import UNIT_ROUNDOFF, Precision, conventional, precision_of
    from msprobe_core.judge.noise.closed_form import CLOSED_NULLS, closed_distance
    from msprobe_core.judge.noise.measures import Measure, with_measures
    from msprobe_core.judge.noise.model import ALPHA, NoiseSource
    from msprobe_core.judge.noise.null_distribution import EXTREME_LIMIT, LEAST_LIMITS
    from msprobe_core.judge.row_findings import said
    from msprobe_core.judge.statistics_columns import STATISTICS, add_statistics, is_equal
    from msprobe_core.judge.verdict import Verdict, differs
    from msprobe_core.names import parse_entry
    from msprobe_core.report.files import TableForm, time_stamp, write_table
    from msprobe_core.report.sheet import MAX_SHEET_ROWS
    from msprobe_core.store.atomic_file import unused_paths, whole_file
    from msprobe_core.store.frame import RowKind
    from msprobe_core.store.reading import check_exists, is_dump, read_dump
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe_core.checkpoint.contents": "Kind",
            "msprobe_core.checkpoint.fingerprints": "CheckpointPrint TensorPrint compare_prints",
            "msprobe_core.checkpoint.result": "TensorRow",
            "msprobe_core.checkpoint.structure": "Relation",
            "msprobe_core.cli.incomplete": "allow_incomplete_option exit_status",
            "msprobe_core.cli.output_options": "output_option overwrite_option",
            "msprobe_core.cli.progress": "progress_bar",
            "msprobe_core.cli.rl_check": "rl_check",
            "msprobe_core.cli.rl_compare": "rl_compare",
            "msprobe_core.cli.show": "show",
            "msprobe_core.compare.layouts.serving": "served_path",
            "msprobe_core.compare.mapping_files": "read_matching",
            "msprobe_core.store.reading": "check_exists is_dump read_dump",
            "msprobe_core.compare.result": "UnitResult",
            "msprobe_core.compare.tensor_metrics": "PairSums Workspace",
            "msprobe_core.compare.unit": "CompareOptions",
            "msprobe_core.judge.limits": "Precision UNIT_ROUNDOFF conventional precision_of",
            "msprobe_core.judge.noise.closed_form": "CLOSED_NULLS closed_distance",
            "msprobe_core.judge.noise.measures": "Measure with_measures",
            "msprobe_core.judge.noise.model": "ALPHA NoiseSource",
            "msprobe_core.judge.noise.null_distribution": "EXTREME_LIMIT LEAST_LIMITS",
            "msprobe_core.judge.row_findings": "said",
            "msprobe_core.judge.statistics_columns": "STATISTICS add_statistics is_equal",
            "msprobe_core.judge.verdict": "Verdict differs",
            "msprobe_core.names": "parse_entry",
            "msprobe_core.compat.functions": "compare compare_distributed",
            "msprobe_core.store.atomic_file": "unused_paths whole_file",
            "msprobe_core.report.files": "TableForm time_stamp write_table",
            "msprobe_core.report.sheet": "MAX_SHEET_ROWS",
            "msprobe_core.store.frame": "RowKind",
        },
    )

__all__ = [  # noqa: RUF022  # by purpose
    # Comparing runs
    "compare", "compare_distributed", "CompareOptions", "read_matching", "UnitResult",
    # Dumps
    "check_exists", "is_dump", "read_dump", "RowKind", "parse_entry", "served_path",
    # Measures
    "STATISTICS", "add_statistics", "is_equal", "Measure", "with_measures", "PairSums", "Workspace",
    # Limits and noise
    "UNIT_ROUNDOFF", "Precision", "conventional", "precision_of", "ALPHA", "NoiseSource", "CLOSED_NULLS",
    "closed_distance", "EXTREME_LIMIT", "LEAST_LIMITS", "Verdict", "differs", "said",
    # Weights
    "CheckpointPrint", "TensorPrint", "TensorRow", "Kind", "Relation", "compare_prints",
    # Results
    "TableForm", "time_stamp", "write_table", "MAX_SHEET_ROWS", "unused_paths",
    "whole_file",
    # Commands
    "allow_incomplete_option", "exit_status", "output_option", "overwrite_option", "progress_bar", "show",
    "rl_check", "rl_compare",
]  # fmt: skip
