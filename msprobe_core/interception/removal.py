"""What is installed for a window, and has nothing left to report once it is removed."""

from __future__ import annotations

from collections.abc import Callable


class NothingPending:
    """Base of a `msprobe_core.plugin.Removable` of which nothing is left once it is detached."""

    def release(self) -> None:
        """Do nothing: no gradients are reported later."""

    def settle(self) -> None:
        """Do nothing: no sums are pending."""


class Removal(NothingPending):
    """A `msprobe_core.plugin.Removable` that one function removes."""

    def __init__(self, remove: Callable[[], None]) -> None:
        """Begin.

        Args:
            remove: Removes what is installed.
        """
        self._remove = remove

    def detach(self) -> None:
        """Remove it."""
        self._remove()
