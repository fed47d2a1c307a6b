"""What is in place in the user's program while a window runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

from msprobe_core.errors import PluginError
from msprobe_core.guard import plugin_call
from msprobe_core.protocols.capabilities import WatchingFramework
from msprobe_core.protocols.framework import Framework, Removable

_Placed = TypeVar("_Placed", bound=Removable)


class Attachments:
    """Puts things in place and takes them out in reverse order, also those below one that fails.

    What has been taken out may still report gradients of calls that it has seen, until it is released.
    """

    def __init__(self, framework_name: str) -> None:
        """Begin with nothing in place.

        Args:
            framework_name: The framework in words, for messages.
        """
        self._framework_name = framework_name
        self._in_place: list[Removable] = []
        self._taken_out: list[Removable] = []

    def __bool__(self) -> bool:
        """Whether anything is in place."""
        return bool(self._in_place)

    def plugin_call(self, doing: str) -> AbstractContextManager[None]:
        """Return a block in which errors name the framework's plugin."""
        return plugin_call(self._framework_name, doing)

    def put_in_place(self, place: Callable[..., _Placed], *arguments: Any) -> _Placed:
        """Return what ``place`` has put in place.

        Raises:
            PluginError: it raises, or returns what cannot be taken out.
        """
        with self.plugin_call("attaching"):
            placed = place(*arguments)
        if not all(hasattr(placed, name) for name in ("detach", "settle", "release")):
            raise PluginError(f"{self._framework_name} returned {placed!r} from attaching, which cannot be detached")
        self._in_place.append(placed)
        return placed

    def detach(self) -> None:
        """Take everything out."""
        with ExitStack() as stack:
            for _ in self._in_place:
                stack.callback(self.detach_last)

    def detach_last(self) -> None:
        """Take out what was put in place last."""
        attachment = self._in_place.pop()
        self._taken_out.append(attachment)
        with self.plugin_call("detaching"):
            attachment.detach()

    def settle(self) -> None:
        """Have what was taken out hand over what it is still adding up."""
        for attachment in self._taken_out:
            with self.plugin_call("settling"):
                attachment.settle()

    def release(self) -> None:
        """Have what was taken out report no gradient any more, and forget it."""
        with ExitStack() as stack:
            for _ in self._taken_out:
                stack.callback(self._release_last)

    def _release_last(self) -> None:
        with self.plugin_call("releasing"):
            self._taken_out.pop().release()


def watching(what: str, framework: Framework) -> WatchingFramework:
    """Return a framework as one that reports calls of modules.

    Args:
        what: What needs this, for the message.
        framework: Of the session.

    Raises:
        PluginError: its plugin does not offer it.
    """
    if not isinstance(framework, WatchingFramework):
        raise PluginError(not_watched(what, framework))
    return framework


def not_watched(what: str, framework: Framework) -> str:
    """Say that a framework's plugin cannot report calls of modules."""
    return f"{what!r} is not available for {framework.name}: its plugin does not offer to watch calls"
