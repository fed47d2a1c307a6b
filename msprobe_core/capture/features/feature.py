"""The protocol between a session and its features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msprobe_core.capture.attachments import Attachments
from msprobe_core.capture.forward_window import ForwardWindow
from msprobe_core.capture.tensor_reader import CallCheck, TensorSink
from msprobe_core.config import Config
from msprobe_core.model import Batch
from msprobe_core.protocols.framework import Framework, NamedModel


@dataclass(frozen=True)
class Host:
    """What a session offers to its features.

    Attributes:
        config: What is recorded.
        framework: What is recorded of.
        save: Writes a copy of a tensor under a file stem, in the background, and sets the value's ``file_name``.
        write_backlog: Hands over for writing what is complete, without waiting.
        end_recording: Records nothing any more, for the given reason; the window still ends as usual.
    """

    config: Config
    framework: Framework
    save: TensorSink
    write_backlog: Callable[[], None]
    end_recording: Callable[[str], None]


class Feature:
    """Takes part in nothing; a feature overrides what it needs.

    What a method raises ends recording, never the training.
    """

    @property
    def tensor_sink(self) -> TensorSink | None:
        """Return what gets whole tensors instead of the dump; ``None``: this feature does not want them."""
        return None

    @property
    def call_check(self) -> CallCheck | None:
        """Return what judges each call while it is recorded."""
        return None

    @property
    def is_over(self) -> bool:
        """Whether nothing needs to be recorded any more; asked when a window has ended."""
        return False

    def begin_window(self, step: int, rank: int | None) -> bool:  # noqa: ARG002
        """Return whether ``attach`` is to be called in this window, also where the window is not recorded."""
        return False

    def attach(self, attachments: Attachments, models: Sequence[NamedModel], forwards: ForwardWindow | None) -> None:
        """Put something in place, before the recorder is: what is attached later sees what this one has changed.

        Args:
            attachments: Takes it out again when the window ends.
            models: Those that ``start`` was given.
            forwards: Says which of their forwards are selected; ``None``: all.
        """

    def end_window(self, *, was_running: bool) -> None:
        """Take note that everything of a window is written; ``was_running`` is false if none was open."""

    def begin_unit(self, step: int, rank: int | None) -> None:
        """Take note that the dump of a step begins."""

    def sift(self, batch: Batch, step: int) -> Batch:  # noqa: ARG002
        """Return what is to be written of a batch, whose digests are all known."""
        return batch

    def finish_step(self) -> None:
        """Add what still waits to the record: the last batch of the step is about to be written."""

    def end_unit(self, step: int) -> None:
        """Take note that the dump of a step is complete and about to be closed."""

    def close(self) -> None:
        """Take note that the session ends."""
