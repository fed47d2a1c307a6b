"""Columns of frames from alignment to nodes: one schema for the result of each stage.

A schema lists the columns that a stage guarantees and those that it may add, with dtype and meaning. Tests check the
frame of every stage against it; there is no check at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import polars as pl

from msprobe_core.judge.row_findings import FINDINGS
from msprobe_core.judge.row_findings import SCHEMA as SAID
from msprobe_core.store.frame import COLUMNS


class Match(str, Enum):
    """Which sides have a row."""

    BOTH = "both"
    TARGET = "only target"
    GOLDEN = "only golden"


SIDES = ("target", "golden")
SKETCH_ERROR = "sketch_error"
SKETCH_LOW = "sketch_low"
EXTRA_PREFIX = "extra:"
EXTRA_STATISTIC, EXTRA_ERROR, EXTRA_LIMIT = "extra_statistic", "extra_error", "extra_limit"


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        dtype: A polars dtype.
        meaning: Meaning of its values, and of null.
    """

    dtype: Any
    meaning: str


Columns = Mapping[str, Column]


@dataclass(frozen=True, eq=False)
class Schema:
    """The columns of a frame at the end of a stage.

    Attributes:
        name: Name of the stage.
        required: Columns that are always present, by name.
        optional: Columns that some comparisons have, by name.
        prefixes: Prefixes of the names of further columns.
    """

    name: str
    required: Columns
    optional: Columns
    prefixes: tuple[str, ...] = ()

    def then(
        self,
        name: str,
        required: Columns,
        optional: Columns,
        *,
        without: Sequence[str] = (),
        prefixes: Sequence[str] = (),
    ) -> Schema:
        """Return the schema of the next stage, which adds columns and drops some."""
        kept = {key: column for key, column in {**self.required, **required}.items() if key not in without}
        others = {key: column for key, column in {**self.optional, **optional}.items() if key not in (*without, *kept)}
        return replace(self, name=name, required=kept, optional=others, prefixes=(*self.prefixes, *prefixes))

    def problems(self, frame: pl.DataFrame) -> list[str]:
        """Return a sentence for each column that a frame lacks, has in addition, or has in another dtype."""
        known = {**self.required, **self.optional}
        lacking = [f"{self.name}: lacks '{name}'" for name in self.required if name not in frame.columns]
        unknown = [
            f"{self.name}: has '{name}', which is in no schema"
            for name in frame.columns
            if name not in known and not name.startswith(self.prefixes or ("\0",))
        ]
        mistyped = [
            f"{self.name}: '{name}' is {dtype}, not {known[name].dtype}"
            for name, dtype in frame.schema.items()
            if name in known and dtype != known[name].dtype
        ]
        return [*lacking, *unknown, *mistyped]


def _of_sides(columns: Mapping[str, tuple[Any, str]]) -> dict[str, Column]:
    return {
        f"{name}_{side}": Column(dtype, f"{meaning}, of the {side}")
        for name, (dtype, meaning) in columns.items()
        for side in SIDES
    }


def _floats(columns: Mapping[str, str]) -> dict[str, Column]:
    return {name: Column(pl.Float64, meaning) for name, meaning in columns.items()}


def _flags(columns: Mapping[str, str]) -> dict[str, Column]:
    return {name: Column(pl.Boolean, meaning) for name, meaning in columns.items()}


_OF_ROW = ("entry", "key", "role", "phase")

ALIGNED = Schema(
    "aligned",
    required={
        "match": Column(pl.String, "a value of `Match`"),
        "entry": Column(COLUMNS["entry"], "the target's; of what golden has alone golden's, marked if it is taken"),
        "entry_golden": Column(COLUMNS["entry"], "golden's entry; null of what the target has alone"),
        "key": Column(COLUMNS["key"], "what the two were matched by"),
        "role": Column(COLUMNS["role"], "part of the call"),
        "phase": Column(COLUMNS["phase"], "direction of the call"),
        **_of_sides({name: (dtype, f"'{name}' of the dump") for name, dtype in COLUMNS.items() if name not in _OF_ROW}),
    },
    optional=_of_sides({
        "place": (pl.String, "canonical place of the value in its call"),
        "numbered": (pl.String, "name with the number of the call"),
    }),
)  # fmt: skip
"""Rows of two dumps side by side, in execution order of the target."""

_PERCENTILES = {
    f"{kind}_{name}": f"{kind} error that {share} % of the elements do not exceed"
    for kind in ("abs", "rel")
    for name, share in (("p50", "50"), ("p90", "90"), ("p99", "99"), ("p999", "99.9"))
}

MEASURED = ALIGNED.then(
    "measured",
    required=_floats({
        **{f"{name}_diff": f"target - golden of the {name}" for name in ("max", "min", "mean", "norm")},
        **{f"{name}_rel": f"the same over golden's {name}, without sign" for name in ("max", "min", "mean", "norm")},
        "error": "largest relative error, in relation to the size of the tensor; null without numbers",
    }),
    optional={
        **_floats({
            SKETCH_ERROR: "relative error estimated from sketches",
            SKETCH_LOW: "lower end of its interval of 95 %",
            "cosine": "cosine similarity of whole tensors",
            "euclidean": "Euclidean distance of whole tensors",
            "largest_abs": "largest absolute difference of an element",
            "largest_rel": "largest relative difference of an element",
            "within_1e3": "share of elements within 0.1 %",
            "within_5e3": "share of elements within 0.5 %",
            "bias": "mean of target - golden",
            "scale": "factor that fits the target best",
            "ulp_max": "largest difference in units in the last place",
            "ulp_p99": "difference in units in the last place that 99 % of the elements do not exceed",
            **_PERCENTILES,
        }),
        EXTRA_STATISTIC: Column(pl.String, "statistic of a plugin that is farthest over its limit; null without any"),
        EXTRA_ERROR: Column(pl.Float64, "its difference, as its plugin declares it"),
        EXTRA_LIMIT: Column(pl.Float64, "largest `extra_error` that passes"),
        "num_different": Column(pl.Int64, "elements that differ at all"),
        "status": Column(pl.String, "how the comparison of whole tensors went"),
        "problem": Column(pl.String, "why whole tensors could not be compared"),
        "unread": Column(pl.String, "why one of them could not be read, so that only statistics are compared"),
        "excuse": Column(pl.String, "code of why the row is not judged; null where it is"),
        "excuse_of": Column(pl.String, "entry that the excuse names; null of others"),
        "is_counted_from_end": Column(pl.Boolean, "both are one size or dimension, which one side counts from the end"),
        "worst_index": Column(pl.String, "index of the element that differs most"),
        "worst_target": Column(pl.String, "its value in the target"),
        "worst_golden": Column(pl.String, "its value in golden"),
    },
    without=[f"{name}_{side}" for name in ("sketch", "fp8", "extra") for side in SIDES],
    prefixes=("metric:", "fp8_", EXTRA_PREFIX),
)  # fmt: skip
"""Differences of each pair, before any verdict. Metrics of plugins have their own column names."""

JUDGED = MEASURED.then(
    "judged",
    required={
        **_floats({
            "judged_error": "what the row was judged by; null where it is exempt or not comparable",
            "limit": "largest `judged_error` that passes; null where a score or a limit by name decides",
            "source_norm": "largest norm of the golden tensors that the call was given",
            "source_size": "largest magnitude of these",
        }),
        "source_numel": Column(pl.Int64, "largest number of elements of these"),
        "precision": Column(pl.Int8, "coarsest `Precision` that the value has come through; null of other dtypes"),
        "kind_of_target": Column(pl.String, "`float`, `complex`, `int` or `bool`"),
        "kind_of_golden": Column(pl.String, "the same of golden"),
        "is_exempt": Column(pl.Boolean, "nothing of its values is judged"),
        "problem": MEASURED.optional["problem"],
        "unread": MEASURED.optional["unread"],
        "override": Column(pl.String, "the limit by name that holds, in words; null without one"),
        "verdict": Column(pl.String, "a value of `Verdict`"),
        "messages": Column(pl.List(pl.String), "sentences, the worst first"),
        FINDINGS: Column(SAID[FINDINGS], "what the sentences say: codes, levels and fields"),
    },
    optional={
        **_floats({
            "noise_floor": "error that rounding explains, of `score_measure`",
            "score": "error over floor; 0 of equal values, null where there are no floats",
            "score_limit": "largest `score` that passes",
        }),
        "score_measure": Column(pl.String, "a value of `Measure`: what is farthest over its limit"),
    },
    without=("excuse", "excuse_of", "is_counted_from_end"),
)  # fmt: skip
"""Rows with verdicts."""

SCORED = JUDGED.then(
    "scored",
    required={
        **_floats({
            "score": "error in units of what rounding does, or of the limit where nothing measures that",
            "score_limit": "largest `score` that passes; 1 where limits decide",
            "excess": "`score` over `score_limit` as the verdict has it: above 1 it is no rounding",
            "roundings": "error in units of the round-offs that limits explain; infinite of another argument",
            "local_excess": "error in units of what the call's own rounding is allowed",
            "argument_gap": "relative difference of two floats given as arguments; null of others",
        }),
        **_flags({
            "is_equal": "bitwise equal, as far as was recorded",
            "is_parameter": "a parameter of the module, or an argument that is one",
            "is_argument": "an input that is no tensor on both sides",
        }),
    },
    optional=_floats({"update_factor": "what all updates are multiplied by; null without a common factor"}),
)  # fmt: skip
"""Rows with the columns from which nodes are formed."""

NODE = Schema(
    "node",
    required={
        "position": Column(pl.UInt32, "in execution order"),
        "entry": ALIGNED.required["entry"],
        "entry_golden": ALIGNED.required["entry_golden"],
        "match": ALIGNED.required["match"],
        "verdict": Column(pl.String, "the worst of its rows"),
        "is_alone": Column(pl.Boolean, "one side alone has it, without an excuse"),
    },
    optional={},
)
"""Calls with verdicts."""

_PARTS = ("input", "parameter", "output", "saved")

NODE_EVIDENCE = NODE.then(
    "node evidence",
    required={
        "phase": ALIGNED.required["phase"],
        "only_on": Column(pl.String, "the side that has it alone; null if both do"),
        **_floats({
            **{f"{part}_excess": f"largest excess of its {part}s" for part in _PARTS},
            **{f"{part}_score": f"largest score of its {part}s" for part in _PARTS},
            "other_input_excess": "largest excess of its inputs that are no integers",
            "local_excess": "of a call that was given nothing but what is equal, of its own rounding",
            "roundings_excess": "the same in units of the round-offs that limits explain",
            "argument_excess": "infinite where an argument that is no tensor is another, and nothing measures noise",
            "argument_gap": "largest relative difference of a number that it was given",
            "input_noise": "largest floor of its inputs",
        }),
        **_flags({
            "inputs_equal": "all tensors that it was given are equal",
            "parameters_equal": "all its own parameters are equal",
            "arguments_differ": "an argument that is no tensor is another",
            "outputs_differ": "something that it made differs at all",
            "has_other_number": "was given another number, and made something else",
            "is_unmatched": "a row of it has no partner and no excuse",
            "is_added_up": "one side alone adds its gradients to others",
            "is_lost": "one side lacks this backward of a forward that both have",
            "parts_missing": "one side lacks an output",
            "turns": "made other integers or booleans alone",
            "takes_values": "made numbers too",
            "makes_integers": "made integers or booleans too, or nothing that was recorded",
            "may_be_given_other": "was given what may differ in the last digit",
            "is_open": "what it made cannot be judged by what it was given",
        }),
    },
    optional={},
    without=("match", "verdict", "is_alone"),
)  # fmt: skip
"""Calls with the evidence by which culprits are found."""
