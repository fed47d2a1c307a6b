"""Owner of a call outside of every module: an optimizer's step, or gradient clipping.

It is determined from stack frames. So nothing is patched, functions imported by name are found, and an exception leaves
no state open.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType

_MAX_FRAMES = 24
"""Maximum number of frames to search; functions of PyTorch's optimizers are about ten frames below their step."""


class Owners:
    """Finds `names.OPTIMIZER` or `names.CLIP_GRAD` among the running functions."""

    def __init__(self, owner_by: Callable[[CodeType], str | None]) -> None:
        """Prepare.

        Args:
            owner_by: Returns the owner that a function stands for, or ``None``; called once per function.
        """
        self._owner_by = owner_by
        # Keyed by id, because hashing a code object hashes all its content; kept alive, so that no id is reused.
        self._known: dict[int, tuple[CodeType, str | None]] = {}

    def find(self, frame: FrameType | None, is_excused: Callable[[FrameType], bool] | None = None) -> str | None:
        """Return the innermost owner that is running; ``None`` if there is none.

        Args:
            frame: The frame of the call.
            is_excused: Whether the call is not of the owner although its function runs; ``None`` if it always is.
        """
        known = self._known
        for _ in range(_MAX_FRAMES):
            if frame is None:
                return None
            code = frame.f_code
            found = known.get(id(code))
            if found is None:
                found = known[id(code)] = code, self._owner_by(code)
            if found[1] is not None:
                return None if is_excused is not None and is_excused(frame) else found[1]
            frame = frame.f_back
        return None


def is_clipping(code: CodeType) -> bool:
    """Whether a function clips gradients, in ``torch.nn.utils.clip_grad`` or ``megatron.core.optimizer``."""
    return code.co_name.startswith("clip_grad") and "clip_grad" in code.co_filename.rpartition("/")[2]
