"""Write down who draws random numbers."""

from __future__ import annotations

import os

from msprobe.pytorch._framework import PyTorchFramework
from msprobe_core.interception import RandomLog


def random_save(output_path: str | os.PathLike[str] = "./output") -> RandomLog:
    """Log every call of a random function of Python, NumPy and PyTorch from now on, with its stack.

    Rows go to ``{output_path}/random_rank{id}_{time}.csv``, outside of a job to ``random_proc{pid}_{time}.csv``. They
    are on disk before the function runs, so a killed process loses none.

    Args:
        output_path: Directory; created if it does not exist.

    Returns: a handle; its ``stop`` ends the log, and so does leaving it if used as a context manager.

    Raises:
        ConfigError: ``output_path`` is not a path.
        StoreError: the file cannot be created.
    """
    return RandomLog(output_path, PyTorchFramework())
