"""What could not be compared of two trainings' gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

from msprobe_core.findings import Field, Finding
from msprobe_core.gradients.gradients_codes import GradientCode


@dataclass
class Lacking:
    """Findings of what could not be compared; of each kind and rank the first, with a count."""

    findings: dict[object, tuple[GradientCode, dict[str, Field]]] = field(
        default_factory=dict[object, tuple[GradientCode, dict[str, Field]]]
    )

    def note(self, code: GradientCode, **fields: Field) -> None:
        """Note one."""
        known = self.findings.setdefault((code, fields.get("rank")), (code, fields | {"count": 0}))[1]
        known["count"] = int(str(known["count"])) + 1

    def result(self) -> list[Finding]:
        """Return the findings."""
        return [Finding(code, fields=fields) for code, fields in self.findings.values()]
