"""Checkpoints of models: opened without their framework, put together from their shards, fingerprinted and compared.

* `open_checkpoint` opens a file or directory of any format; only headers are read.
* `compare_checkpoints` says of each tensor of two checkpoints whether it is the same, and how it differs.
* `fingerprint_checkpoint` reads a checkpoint once; `compare_prints` compares fingerprints.

Names are imported on first use.
"""

from typing import TYPE_CHECKING

from msprobe_core.lazy import lazy_names

if TYPE_CHECKING:
    from msprobe_core.checkpoint.compare import CheckpointOptions, compare_checkpoints
    from msprobe_core.checkpoint.fingerprints import (
        compare_prints,
        fingerprint_checkpoint,
        read_fingerprint,
        write_fingerprint,
    )
    from msprobe_core.checkpoint.opening import open_checkpoint
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe_core.checkpoint.compare": "CheckpointOptions compare_checkpoints",
            "msprobe_core.checkpoint.fingerprints": (
                "compare_prints fingerprint_checkpoint read_fingerprint write_fingerprint"
            ),
            "msprobe_core.checkpoint.opening": "open_checkpoint",
        },
    )

__all__ = [
    "CheckpointOptions",
    "compare_checkpoints",
    "compare_prints",
    "fingerprint_checkpoint",
    "open_checkpoint",
    "read_fingerprint",
    "write_fingerprint",
]
