"""Settings of training and recording that all programs share."""

from __future__ import annotations

from typing import Any

import torch

STEPS = 2
"""Two, because faults in an optimizer have an effect in the second step."""
NUM_REPEATS = 3
"""Number of repetitions of a golden run with perturbed last digits."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MODES: dict[str, dict[str, Any]] = {
    "statistics": {"task": "statistics"},
    "sketch": {"task": "statistics", "statistics": {"summary_mode": "sketch"}},
    "tensor": {"task": "tensor"},
}
