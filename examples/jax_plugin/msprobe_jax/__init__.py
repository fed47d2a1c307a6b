"""What programs import: the debugger for JAX."""

from msprobe_core import PrecisionDebugger as _PrecisionDebugger

__all__ = ["PrecisionDebugger"]


class PrecisionDebugger(_PrecisionDebugger):
    """Records the flax modules that a program in JAX calls."""

    framework_name = "jax"
