"""What is left for the garbage collector, which large trainings switch off."""

import gc
from collections.abc import Callable


def left_by(action: Callable[[], object]) -> list[object]:
    """Return the objects that only the garbage collector frees after a function was called twice."""
    action()  # what is made once, on first use
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        action()
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
