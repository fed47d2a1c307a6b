"""What the check of a call says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from msprobe_core.findings import Finding
from msprobe_core.model import Phase


class Verdict(str, Enum):
    """What a call's result is, the worst first."""

    WRONG = "wrong"
    """Off by more than round-off in the call and in its inputs explains."""
    SUSPECT = "suspect"
    """Wrong for inputs that were made from statistics, which are not those that the call had; or a reaction to a
    perturbation that arithmetic does not explain, where no float64 replay decides."""
    ILL_CONDITIONED = "ill_conditioned"
    """Off, but by no more than rounding the inputs changes the exact result."""
    RIGHT = "right"
    CANNOT_TELL = "cannot_tell"
    """Not replayed, or not judged; the reason is given."""


class Inputs(str, Enum):
    """What a call is replayed with."""

    RECORDED = "recorded"
    RANDOM = "random"
    """Uniform between the recorded minimum and maximum, as the published tool makes them."""
    SYNTHETIC = "synthetic"
    """Made to have the recorded minimum, maximum, mean, norm and sketch."""
    EXACT = "exact"
    """Small integers for which every partial sum is exact, so that the result must be equal to the bit."""


class Mutant(str, Enum):
    """A plainly wrong result; a check that accepts it says little."""

    ZEROS = "zeros"
    INPUT_RETURNED = "input_returned"
    SCALED = "scaled"
    """Multiplied by 1.01."""
    HALF_PRECISION = "half_precision"
    """Rounded to half as many significant bits."""
    SHUFFLED = "shuffled"
    ONE_DROPPED = "one_dropped"
    """One element, of median magnitude, set to zero."""


class PublishedColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of the established acceptance standards; ``None`` where one does not apply.

    Their definitions are in `msprobe_core.api_check.published`. They are columns for those who need
    them, and decide nothing.
    """

    cosine: float | None = None
    max_absolute: float | None = None
    within_percent: float | None = None
    """Share of elements with a relative error below 1 %."""
    within_thousandth: float | None = None
    within_ten_thousandth: float | None = None
    binary_error_rate: float | None = None
    error_balance: float | None = None
    rmse: float | None = None
    small_value_error_share: float | None = None
    max_relative: float | None = None
    mean_relative: float | None = None
    non_finite_error_rate: float | None = None
    relative_error_rate: float | None = None
    absolute_error_rate: float | None = None
    max_ulp: float | None = None
    mean_ulp: float | None = None
    ulp_share: float | None = None
    plain_status: str | None = None
    """What the published rules for one side say of it: pass, warning, error or SKIP."""
    plain_message: str = ""
    standard: str | None = None
    """The published standard for this dtype, a value of `msprobe_core.api_check.standards.Algorithm`."""
    api_class: str | None = None
    """Class of the API for the benchmark standard: L0, L1 or L2."""
    benchmark_status: str | None = None
    """Each of the following is pass or error by one standard; the replay in the call's own precision is the golden side
    of those that need one."""
    absolute_threshold_status: str | None = None
    binary_status: str | None = None
    ulp_status: str | None = None
    thousandth_status: str | None = None
    accumulative_status: str | None = None
    single_benchmark_status: str | None = None
    """Of the single benchmark of operator acceptance tests (ATK)."""
    torch_testing_status: str | None = None
    """Whether ``torch.testing.assert_close`` would accept it."""


class OutputVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one output of a call, or on one gradient of an input.

    Attributes:
        path: Path of the output.
        side: Whose result it is: ``recorded``, or the device that computed it again, such as ``cuda:0``.
        dtype: Of the result.
        shape: Of the result.
        verdict: What it is.
        reason: Why.
        error: Euclidean norm of the error relative to that of the float64 replay; for integers the share of differing
            elements.
        rounding: The error that round-off in the call explains, in the same unit.
        condition: The error that rounding the inputs explains, in the same unit.
        own_error: The error of a replay in the call's own precision, in the same unit; ``None`` if there is none.
        times: The error in units of the allowance, of the norm or of the worst element, whichever is larger; 1 is the
            limit.
        amplification: By how much the call multiplies relative errors of its inputs; ``None`` if unknown.
        worst_index: Index of the worst element; ``None`` if no element differs.
        bias: Mean signed relative error in units of its standard error: beyond some 4, errors have a direction, as
            those of truncation have; ``None`` for fewer than 32 elements or exact results.
        applied: Mutants that were tried.
        accepted: Those of them that this check would have called right.
        published: Metrics of published standards.
        ratio: Of a perturbed call: the largest ratio of an element before and after, as published; else ``None``.
    """

    path: str
    side: str
    dtype: str
    shape: tuple[int, ...]
    verdict: Verdict
    reason: Finding
    error: float
    rounding: float
    condition: float
    own_error: float | None
    times: float
    amplification: float | None
    worst_index: tuple[int, ...] | None
    bias: float | None
    applied: tuple[Mutant, ...] = ()
    accepted: tuple[Mutant, ...] = ()
    published: PublishedColumns = PublishedColumns()
    ratio: float | None = None

    @property
    def is_weak(self) -> bool:
        """Whether half or more of the mutants that could be tried would have passed."""
        if not self.applied:  # in a damaged file, ``accepted`` may have some nevertheless
            return False
        return bool(self.accepted) and 2 * len(self.accepted) >= len(self.applied)


class CallVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one recorded call.

    Attributes:
        entry: The forward or backward entry in the dump.
        api: The call without its phase, such as ``Functional.linear.0``.
        phase: Forward or backward.
        verdict: The worst among the outputs; `Verdict.CANNOT_TELL` if none was judged.
        inputs: What the call was replayed with.
        seed: Of made inputs; ``None`` for recorded ones.
        outputs: One per output and side.
        reason: Why the call was not judged; ``None`` if it was.
        stage: 1 if undisturbed replays decided, 2 if the condition was measured, 3 if an exact probe did.
        notes: Further findings, such as those of exact probes.
        position: Position of the call among those of the dump.
        reach: Number of later calls that its result flows into, as far as the dump shows; ``None`` if unknown.
        seconds: Duration of the check.
    """

    entry: str
    api: str
    phase: Phase
    verdict: Verdict
    inputs: Inputs = Inputs.RECORDED
    seed: int | None = None
    outputs: tuple[OutputVerdict, ...] = ()
    reason: Finding | None = None
    stage: int = 1
    notes: tuple[Finding, ...] = ()
    position: int = 0
    reach: int | None = None
    seconds: float = 0.0

    @property
    def worst(self) -> OutputVerdict | None:
        """The output with the largest error among those with the worst verdict."""
        decisive = [output for output in self.outputs if output.verdict is self.verdict]
        return max(decisive, key=lambda output: output.times, default=None)


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of several verdicts; `Verdict.CANNOT_TELL` of none."""
    found = set(verdicts)
    return next((verdict for verdict in Verdict if verdict in found), Verdict.CANNOT_TELL)


def by_effect(verdicts: Sequence[CallVerdict]) -> list[CallVerdict]:
    """Return the calls that are not right, ordered by error in units of the allowance times reach in the graph."""

    def effect(call: CallVerdict) -> tuple[int, float, int]:
        worst = call.worst
        size = 0.0 if worst is None else worst.times * (1 + (call.reach or 0))
        return _ORDER.index(call.verdict), -size, call.position

    return sorted((call for call in verdicts if call.verdict in _ORDER), key=effect)


_ORDER = (Verdict.WRONG, Verdict.SUSPECT, Verdict.ILL_CONDITIONED)
