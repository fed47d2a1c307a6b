"""What a call outside of every module belongs to: an optimizer's step, or the clipping of gradients.

Told by the frames that lead to the call, so nothing is patched, functions imported by name count, and an exception
leaves nothing open.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType

_MAX_FRAMES = 24
"""How far up is looked; the functions of PyTorch's optimizers are some ten frames below their step."""


class Owners:
    """Finds `names.OPTIMIZER` or `names.CLIP_GRAD` among the functions that are running."""

    def __init__(self, owner_by: Callable[[CodeType], str | None]) -> None:
        """Prepare.

        Args:
            owner_by: Tells which of the two a function belongs to; asked once for each.
        """
        self._owner_by = owner_by
        # By identity, and kept, so that no other gets the same: a code object's own hash goes through all it holds.
        self._known: dict[int, tuple[CodeType, str | None]] = {}

    def find(self, frame: FrameType | None) -> str | None:
        """Return what is running, the innermost if there are several; ``None`` if there is none."""
        known = self._known
        for _ in range(_MAX_FRAMES):
            if frame is None:
                return None
            code = frame.f_code
            found = known.get(id(code))
            if found is None:
                found = known[id(code)] = code, self._owner_by(code)
            if found[1] is not None:
                return found[1]
            frame = frame.f_back
        return None


def is_clipping(code: CodeType) -> bool:
    """Whether a function clips gradients: of ``torch.nn.utils.clip_grad``, or of ``megatron.core.optimizer``."""
    return code.co_name.startswith("clip_grad") and "clip_grad" in code.co_filename.rpartition("/")[2]
