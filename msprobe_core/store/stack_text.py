"""Call stacks as stored in dumps: one text per frame, innermost first."""

from __future__ import annotations

from collections.abc import Sequence

_FRAMEWORK_FRAMES = ("/torch/", "/mindspore/", "<frozen ")


def frames_of_user(stack: Sequence[str]) -> Sequence[str]:
    """Return the frames that are not the framework's own, innermost first; all frames if all are the framework's."""
    own = [frame for frame in stack if not any(part in frame for part in _FRAMEWORK_FRAMES)]
    return own or list(stack)
