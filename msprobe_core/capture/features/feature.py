"""The protocol between a session and its features."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msprobe_core.capture.attachments import Attachments
from msprobe_core.capture.forward_window import ForwardWindow
from msprobe_core.capture.manifests import Manifests
from msprobe_core.capture.tensor_reader import CallCheck, TensorSink
from msprobe_core.config import Config
from msprobe_core.model import Batch
from msprobe_core.protocols.framework import Framework, NamedModel


@dataclass(frozen=True)
class Host:
    """Services of a session for its features.

    Attributes:
        config: The configuration.
        framework: The framework that is recorded.
        save: Writes a copy of a tensor under a file stem, in the background, and sets the value's ``file_name``.
        write_backlog: Passes complete entries to the writer, without waiting.
        end_recording: Ends recording for the given reason; the window still ends as usual.
        directory: Returns the directory of the current step's dump; ``None`` before the first.
        manifests: The manifests that this process has written.
    """

    config: Config
    framework: Framework
    save: TensorSink
    write_backlog: Callable[[], None]
    end_recording: Callable[[str], None]
    directory: Callable[[], Path | None]
    manifests: Manifests = field(default_factory=Manifests)


class Feature:
    """Base class whose methods do nothing; a feature overrides what it needs.

    An exception in a method ends recording, never the training.
    """

    @property
    def tensor_sink(self) -> TensorSink | None:
        """Return the function that gets whole tensors instead of the dump; ``None`` if this feature takes none."""
        return None

    @property
    def call_check(self) -> CallCheck | None:
        """Return the check that judges each call during recording; ``None`` if there is none."""
        return None

    @property
    def sample(self) -> Container[str] | None:
        """Return the names of the only entries to record, which may differ in each window; ``None`` for all."""
        return None

    def records_step(self, step: int) -> bool:  # noqa: ARG002
        """Return whether the window that begins is recorded, if the configuration selects its step."""
        return True

    @property
    def is_over(self) -> bool:
        """Whether recording can end; evaluated when a window has ended."""
        return False

    def monitor(self, targets: Sequence[Any], optimizer: Any, step: int) -> bool:  # noqa: ARG002
        """Observe the steps of an optimizer from now on, and return whether this feature does so.

        Args:
            targets: Models, or optimizers.
            optimizer: Of the models; ``None`` if it was not given.
            step: Number of the first step.

        Raises:
            SessionError: an argument is neither a model nor an optimizer.
        """
        return False

    def begin_window(self, step: int, rank: int | None) -> bool:  # noqa: ARG002
        """Return whether to call ``attach`` in this window, also if the window is not recorded."""
        return False

    def attach(self, attachments: Attachments, models: Sequence[NamedModel], forwards: ForwardWindow | None) -> None:
        """Attach to the program, before the recorder does: later attachments observe the changes of this one.

        Args:
            attachments: Removes the attachment when the window ends.
            models: The models given to ``start``.
            forwards: Tracks which forwards of the models are selected; ``None``: all.
        """

    def end_window(self, *, was_running: bool) -> None:
        """React to the end of a window, when its entries are written; ``was_running`` is false if none was open."""

    def begin_unit(self, step: int, rank: int | None) -> None:
        """React to the begin of a step's dump."""

    def begin_recording(self, models: Sequence[NamedModel]) -> None:
        """React to the begin of a recorded window, before anything is attached; at level debug, of the dump."""

    def attach_recording(
        self, attachments: Attachments, models: Sequence[NamedModel], forwards: ForwardWindow | None
    ) -> None:
        """Attach to the program in a recorded window, before any ``attach``; see there."""

    def sift(self, batch: Batch, step: int) -> Batch:  # noqa: ARG002
        """Return the part of a batch, whose digests are all known, to write."""
        return batch

    def finish_step(self) -> None:
        """Add pending entries to the record: the last batch of the step is about to be written."""

    def end_unit(self, step: int) -> None:
        """React to the end of a step's dump, before it is closed."""

    def close(self) -> None:
        """React to the end of the session."""
