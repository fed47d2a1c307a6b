"""The patches and hooks that are installed in the user's program while a window is open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

from msprobe_core.errors import PluginError
from msprobe_core.guard import checked, missing_members, plugin_call
from msprobe_core.protocols.capabilities import WatchingFramework
from msprobe_core.protocols.framework import Framework, Removable

_Placed = TypeVar("_Placed", bound=Removable)


class Attachments:
    """Installs attachments and removes them in reverse order; an error in one does not keep the others from removal.

    Until `release`, a removed attachment may still report gradients of calls that it observed.
    """

    def __init__(self, framework_name: str) -> None:
        """Begin without attachments.

        Args:
            framework_name: Name of the framework for messages.
        """
        self._framework_name = framework_name
        self._in_place: list[Removable] = []
        self._taken_out: list[Removable] = []

    def __bool__(self) -> bool:
        """Whether any attachment is installed."""
        return bool(self._in_place)

    def plugin_call(self, doing: str) -> AbstractContextManager[None]:
        """Return a context manager in which errors name the framework's plugin."""
        return plugin_call(self._framework_name, doing)

    def put_in_place(self, place: Callable[..., _Placed], *arguments: Any, expected: type = Removable) -> _Placed:
        """Call ``place``, and return the attachment that it installed.

        Args:
            place: Installs it.
            arguments: Of ``place``.
            expected: What an attachment must be.

        Raises:
            BrokenPluginError: ``place`` raises, or returns something else.
        """
        with self.plugin_call("attaching"):
            placed = place(*arguments)
        if not missing_members(placed, Removable):
            self._in_place.append(placed)  # so that it is removed even if it lacks something else
        return checked(placed, expected, self._framework_name, "attaching")

    def detach(self) -> None:
        """Remove all attachments."""
        with ExitStack() as stack:
            # Through an ExitStack: all are removed even if one raises, and the first error is raised at the end.
            for _ in self._in_place:
                stack.callback(self.detach_last)

    def detach_last(self) -> None:
        """Remove the attachment that was installed last."""
        attachment = self._in_place.pop()
        self._taken_out.append(attachment)
        with self.plugin_call("detaching"):
            attachment.detach()

    def settle(self) -> None:
        """Have removed attachments report the gradients that they are still accumulating."""
        for attachment in self._taken_out:
            with self.plugin_call("settling"):
                attachment.settle()

    def release(self) -> None:
        """Stop the reports of removed attachments, and drop them."""
        with ExitStack() as stack:
            for _ in self._taken_out:
                stack.callback(self._release_last)

    def _release_last(self) -> None:
        with self.plugin_call("releasing"):
            self._taken_out.pop().release()


def watching(what: str, framework: Framework) -> WatchingFramework:
    """Return the framework, checked to support reports of module calls.

    Args:
        what: The setting or feature that needs this, for the message.
        framework: The session's framework.

    Raises:
        PluginError: the framework's plugin does not support it.
    """
    if not isinstance(framework, WatchingFramework):
        raise PluginError(not_watched(what, framework))
    return framework


def not_watched(what: str, framework: Framework) -> str:
    """Return the message for a framework whose plugin cannot report calls of modules."""
    return f"{what!r} is not available for {framework.name}: its plugin does not offer to watch calls"
