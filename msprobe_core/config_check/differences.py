"""Differences between the configurations of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from msprobe_core.findings import Finding
from msprobe_core.manifest.facts import Scalar


class Section(str, Enum):
    """Part of a configuration."""

    FRAMEWORK = "framework"
    LIBRARIES = "libraries"
    DEVICE = "device"
    ENVIRONMENT = "environment"
    SWITCHES = "switches"
    MODEL = "model"
    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer"
    PARALLEL = "parallel"
    RANDOM = "random"
    DATA = "data"
    SETTINGS = "settings"
    WEIGHTS = "weights"


class Severity(str, Enum):
    """Whether a difference can change results."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One setting that differs.

    Attributes:
        section: The part of the configuration.
        path: Place in it: ``model.layers.3.input_layernorm.eps``, ``NCCL_ALGO``, ``groups.0.lr``.
        target: The target's value; ``None`` if it has none, or has it without a value.
        golden: The golden run's value.
        only_on: The side that has it, ``target`` or ``golden``, if the other lacks it.
        severity: Whether it can change results.
        finding: The same in words, with the reason for the severity.
        golden_path: Place on the golden side, if it has another name.
        score: Similarity of the two names, 0 to 1; 1 unless they were matched by similarity.
        count: Number of places with the same difference, of which ``path`` is the first: 32 layers with another eps.
        ranks: Ranks that show it; empty outside of a job, or if all ranks do.
    """

    section: Section
    path: str
    target: Scalar
    golden: Scalar
    severity: Severity
    finding: Finding
    only_on: str | None = None
    golden_path: str | None = None
    score: float = 1.0
    count: int = 1
    ranks: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class SectionResult:
    """What was compared in one section.

    Attributes:
        section: The section.
        compared: Number of settings that both sides have.
        differences: Those that differ, the most severe first.
        unknown: Why nothing was compared; ``None`` if something was.
    """

    section: Section
    compared: int = 0
    differences: Sequence[Difference] = ()
    unknown: Finding | None = None


@dataclass(frozen=True, kw_only=True)
class ConfigResult:
    """Result of comparing two configurations.

    Attributes:
        target: Where the target's is from.
        golden: Where the golden run's is from.
        sections: One per section, in the order of `Section`.
        notes: What could not be read.
    """

    target: Path
    golden: Path
    sections: Sequence[SectionResult]
    notes: Sequence[Finding] = ()

    @property
    def differences(self) -> list[Difference]:
        """All differences, the most severe first; within a severity in the order of the sections."""
        order = list(Severity)
        found = [each for section in self.sections for each in section.differences]
        return sorted(found, key=lambda each: order.index(each.severity))

    @property
    def matters(self) -> bool:
        """Whether a difference can change results."""
        return any(each.severity is not Severity.INFO for each in self.differences)
