"""Call stacks as dumps hold them: one text per frame, the innermost first."""

from __future__ import annotations

from collections.abc import Sequence

_FRAMEWORK_FRAMES = ("/torch/", "/mindspore/", "<frozen ")


def frames_of_user(stack: Sequence[str]) -> Sequence[str]:
    """Return the frames that are not the framework's own, the innermost first; all, if all are."""
    own = [frame for frame in stack if not any(part in frame for part in _FRAMEWORK_FRAMES)]
    return own or list(stack)
