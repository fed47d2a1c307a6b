"""What an attachment puts in place, whatever the framework: all or nothing, and taken out in reverse order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from msprobe_core.interception.apis import ApiCalls
from msprobe_core.protocols.recording import CallRecorder

_Calls = TypeVar("_Calls", bound=ApiCalls)


class PlacedAttachment(ABC, Generic[_Calls]):
    """Base of attachments; see `msprobe_core.plugin.Attachment`."""

    def __init__(
        self,
        recorder: CallRecorder,
        quiet: Callable[[Callable[[str, Exception], None]], AbstractContextManager[None]],
        make_calls: Callable[[CallRecorder, dict[int, Callable[[], None]]], _Calls],
    ) -> None:
        """Prepare; ``install`` begins.

        Args:
            recorder: Is told of every call.
            quiet: See `msprobe_core.plugin.Framework.quiet`.
            make_calls: Makes what records outermost calls of APIs.
        """
        self.recorder = recorder
        self.unsettled: dict[int, Callable[[], None]] = {}
        """See `msprobe_core.interception.gradients.GraphGradients`."""
        self.calls = make_calls(recorder, self.unsettled)
        self._quiet = quiet
        self._removals: list[Callable[[], None]] = []

    @abstractmethod
    def install(self) -> None:
        """Put everything in place, with ``place``."""

    @abstractmethod
    def release(self) -> None:
        """See `msprobe_core.plugin.Removable.release`."""

    @abstractmethod
    def is_compiling(self) -> bool:
        """See `msprobe_core.plugin.Attachment.is_compiling`."""

    def install_all(self) -> None:
        """Put everything in place, or nothing if something of it fails."""
        try:
            self.install()
        except BaseException:
            self.detach()
            self.release()
            raise

    def place(self, install: Callable[[], None], remove: Callable[[], None]) -> None:
        """Put one thing in place; ``remove`` takes it out, also when ``install`` has raised."""
        self._removals.append(remove)
        install()

    def detach(self) -> None:
        """Take everything out, the last first."""
        while self._removals:
            self._removals.pop()()

    def settle(self) -> None:
        """Hand over gradients of which some parts never came, for example of a branch that the loss does not use."""
        while self.unsettled:
            _, hand_over = self.unsettled.popitem()
            with self._quiet(self.recorder.note_failure):
                hand_over()

    def call(
        self, prefix: str, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function and record it, if it is not inside of another."""
        return self.calls.run_foreign(prefix, name, function, tuple(args), kwargs)
