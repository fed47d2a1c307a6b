"""What is installed here, what would be recorded, and what hinders that: conditions for `msprobe doctor`."""

from msprobe_core.doctor.examination import Section, examine

__all__ = ["Section", "examine"]
