"""What is trained and recorded alike in all programs."""

from __future__ import annotations

from typing import Any

import torch

STEPS = 2
"""Faults in an optimizer show in the second."""
NUM_REPEATS = 3
"""Of a golden run, with other last digits."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODES: dict[str, dict[str, Any]] = {
    "statistics": {"task": "statistics"},
    "sketch": {"task": "statistics", "statistics": {"summary_mode": "sketch"}},
    "tensor": {"task": "tensor"},
}
