"""Published standards of the accuracy of single calls: thresholds, classes of APIs, and which standard applies.

The numbers are data, ``standards.yaml`` next to this module; docs/standards.md is written from it. They describe what
others accept. `msprobe_core.api_check.published` computes their metrics, and none of them decides our verdict.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.config.text import read_text
from msprobe_core.errors import ConfigError
from msprobe_core.untrusted.malformed import MalformedError

_MAX_FILE_BYTES = 1 << 20

_POWER = re.compile(r"2\^(-?\d{1,3})")


class Algorithm(str, Enum):
    """The six published standards; the values are the names in ``standards.yaml``."""

    BENCHMARK = "benchmark"
    ABSOLUTE_THRESHOLD = "absolute_threshold"
    BINARY = "binary"
    ULP = "ulp"
    THOUSANDTH = "thousandth"
    ACCUMULATIVE = "accumulative"


class Condition(str, Enum):
    """When a standard applies."""

    OUTPUT_FLOAT8 = "output_float8"
    INPUT_FLOAT8 = "input_float8"
    OUTPUT_FLOAT = "output_float"
    OTHER = "other"


class DtypeConstants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of one dtype; ``standards.yaml`` describes them."""

    golden_eps: float
    small_value: float
    absolute_atol: float
    benchmark_atol: float
    rtol: float
    accumulative_bound: float
    accumulative_balance: float
    minimum_error: float


class UlpFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A floating-point format, and the number of units beyond which an element counts."""

    min_exponent: int
    mantissa_bits: int
    threshold: float


class UlpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What passes the ULP standard: any of these that is not ``None``."""

    mean: float | None
    share: float
    ratio: float | None


class AlgorithmText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The label of a standard in published tables, and its rule in words."""

    label: str
    rule: str


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition, and the standard that applies if it is the first that holds."""

    condition: Condition
    algorithm: Algorithm


class ApiClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of ratios for a class of APIs."""

    max_relative: float
    mean_relative: float
    rmse: float
    apis: tuple[str, ...]


class PlainRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the rules for one side alone; see `msprobe_core.api_check.published`."""

    cosine: float
    max_absolute: float
    half_within_percent: float
    half_within_thousandth: float
    single_within_thousandth: float
    single_within_ten_thousandth: float
    zero: float
    quantization_apis: frozenset[str]
    quantization_max_absolute: float
    dropout_apis: frozenset[str]
    dropout_min_elements: int
    dropout_zero_share: float


class SingleBenchmark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of mean and largest relative errors by dtype."""

    eps: float
    max_factor: float
    thresholds: dict[str, float]


class Tolerance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A relative and an absolute tolerance, which are added."""

    rtol: float
    atol: float


class Drift(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where documents and behaviour differ."""

    what: str
    behaviour: str
    documented: str


class Standards(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of all standards; ``standards.yaml`` describes the fields."""

    version: int
    dtypes: dict[str, DtypeConstants]
    accumulative_small_value: float
    ulp_formats: dict[str, UlpFormat]
    ulp_limits: dict[str, UlpLimits]
    thousandth_share: float
    algorithms: dict[Algorithm, AlgorithmText]
    selection: tuple[Choice, ...]
    float8_dtypes: frozenset[str]
    float_dtypes: frozenset[str]
    skipped_dtypes: frozenset[str]
    earlier_apis: dict[Algorithm, tuple[str, ...]]
    classes: dict[str, ApiClass]
    small_value_ratio: float
    error_balance_ratio: float
    plain: PlainRules
    single_benchmark: SingleBenchmark
    torch_testing: dict[str, Tolerance]
    drifts: tuple[Drift, ...]
    differences: tuple[str, ...]

    def constants(self, dtype: str) -> DtypeConstants:
        """Return the constants of a dtype without the framework's name, such as ``bfloat16``."""
        return self.dtypes.get(dtype) or self.dtypes["other"]

    def tolerance(self, dtype: str) -> Tolerance:
        """Return the tolerances of ``torch.testing.assert_close`` for a dtype."""
        return self.torch_testing.get(dtype) or self.torch_testing["other"]

    def class_of(self, api: str) -> tuple[str, ApiClass]:
        """Return the name and the limits of the class of an API, by its own name, such as ``layer_norm``."""
        for name, own in self.classes.items():
            if api in own.apis:
                return name, own
        return next(iter(self.classes.items()))

    def ratio_limits(self, own: ApiClass) -> dict[str, float]:
        """Return the limits of ratios of the benchmark standard for a class, by the metric in `PublishedColumns`."""
        return {
            "small_value_error_share": self.small_value_ratio, "rmse": own.rmse, "max_relative": own.max_relative,
            "mean_relative": own.mean_relative,
        }  # fmt: skip

    def algorithm(self, output: str, inputs: frozenset[str] = frozenset()) -> Algorithm:
        """Return the standard for a result of dtype ``output`` of a call with inputs of dtypes ``inputs``."""
        holds = {
            Condition.OUTPUT_FLOAT8: output in self.float8_dtypes,
            Condition.INPUT_FLOAT8: not inputs.isdisjoint(self.float8_dtypes),
            Condition.OUTPUT_FLOAT: output in self.float_dtypes,
            Condition.OTHER: True,
        }
        return next(choice.algorithm for choice in self.selection if holds[choice.condition])


@cache
def standards() -> Standards:
    """Return the standards of this package."""
    return load_standards(Path(__file__).with_suffix(".yaml"))


def load_standards(path: Path) -> Standards:
    """Read standards from a file.

    Raises:
        ConfigError: the file cannot be read, or is not complete.
    """
    # Imported here: YAML takes longer to import than a call takes to be checked.
    from msprobe_core.untrusted.yaml_text import load_yaml

    content = read_text(path, kind="a file of standards", advice="give a yaml file", max_bytes=_MAX_FILE_BYTES)
    try:
        return msgspec.convert(_numbers(load_yaml(content)), Standards)
    except (MalformedError, msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{path}: is no file of standards ({error}); compare it with standards.yaml") from error


def _numbers(value: Any) -> Any:
    """Return a decoded file with powers of two as numbers."""
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_numbers(each) for each in cast("list[Any]", value)]
    match = _POWER.fullmatch(value) if isinstance(value, str) else None
    return 2.0 ** int(match[1]) if match else value
