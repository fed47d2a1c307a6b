"""Base of framework attachments: installs everything or nothing, and removes it in reverse order."""

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
        """Prepare; nothing is installed before ``install``.

        Args:
            recorder: Receives every call.
            quiet: See `msprobe_core.plugin.Framework.quiet`.
            make_calls: Returns the object that records outermost API calls.
        """
        self.recorder = recorder
        self.unsettled: dict[int, Callable[[], None]] = {}
        """See `msprobe_core.interception.gradients.GraphGradients`."""
        self.calls = make_calls(recorder, self.unsettled)
        self._quiet = quiet
        self._removals: list[Callable[[], None]] = []

    @abstractmethod
    def install(self) -> None:
        """Install everything, with ``place``."""

    @abstractmethod
    def release(self) -> None:
        """See `msprobe_core.plugin.Removable.release`."""

    @abstractmethod
    def is_compiling(self) -> bool:
        """See `msprobe_core.plugin.Attachment.is_compiling`."""

    def install_all(self) -> None:
        """Install everything, or nothing if a part fails."""
        try:
            self.install()
        except BaseException:
            self.detach()
            self.release()
            raise

    def place(self, install: Callable[[], None], remove: Callable[[], None]) -> None:
        """Install one part; ``remove`` will remove it, even if ``install`` raises."""
        self._removals.append(remove)
        install()

    def detach(self) -> None:
        """Remove everything, in reverse order."""
        while self._removals:
            self._removals.pop()()

    def settle(self) -> None:
        """Report gradients with missing parts, for example of a branch that the loss does not use."""
        while self.unsettled:
            _, hand_over = self.unsettled.popitem()
            with self._quiet(self.recorder.note_failure):
                hand_over()

    def call(
        self, prefix: str, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function, and record it unless it is inside another recorded call."""
        return self.calls.run_foreign(prefix, name, function, tuple(args), kwargs)
