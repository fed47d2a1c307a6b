"""Reading of one tensor: its description, its digest and, if configured, all its elements."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from msprobe_core import names
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.slices import Slices, narrowed_shape
from msprobe_core.errors import UnwrittenError
from msprobe_core.guard import checked, kept, reason_of
from msprobe_core.model import Digest, Failure, Stats, TensorMeta, TensorValue, Value
from msprobe_core.protocols.framework import Framework, Reducer
from msprobe_core.protocols.storage import Processor

_logger = logging.getLogger(__name__)

TensorSink = Callable[[Any, str, TensorValue], None]
"""Stores a whole tensor under a file stem in the background and, on success, sets the value's ``file_name``."""

_MAX_KINDS_OF_FAILURES = 20

_NOTHING = Digest(Stats())
"""Digest of values that could not be read."""

_UNSET = Digest(Stats())
"""Digest of uninitialized memory: its content is arbitrary, and would differ between equal runs."""


class CallCheck(Protocol):
    """Judges calls by their tensors during recording, and decides which tensors are stored."""

    def hold(self, tensor: Any, entry: str, category: str, path: str, value: TensorValue) -> None:
        """Note a tensor of a call; it still has the value that is recorded."""
        ...

    def judge(self, entry: str) -> None:
        """Judge a call whose tensors and digests are all known."""
        ...

    def forget(self, entry: str) -> object:
        """Drop everything held for a call that is discarded."""
        ...


class TensorReader:
    """Converts tensors to values; a failure is noted in the value, and logged once per kind."""

    __slots__ = (
        "_describe", "_failures_said", "_narrow", "_reduce", "_selection", "_slices", "check", "keep_tensor",
        "num_failures", "reducer",
    )  # fmt: skip

    def __init__(
        self,
        framework: Framework,
        processor: Processor,
        selection: Selection,
        *,
        keep_tensor: TensorSink | None,
        slices: Slices | None,
    ) -> None:
        """Begin; see `Recorder` for the arguments."""
        self.reducer = checked(framework.reducer(), Reducer, f"the framework '{framework.name}'", "reducer")
        self.check: CallCheck | None = None
        self.num_failures = 0
        self._describe = framework.describe
        self._narrow = framework.narrow
        self._reduce = processor.reduce
        self._selection = selection
        self.keep_tensor = keep_tensor
        self._slices = slices
        self._failures_said: set[str] = set()

    def taker(self, entry: str, category: str, unset: Sequence[Any] = ()) -> Callable[[Any, str], Value]:
        """Return a function that reads the tensors of one side of an entry.

        Args:
            entry: Name of the entry.
            category: Category in file names, such as ``input``.
            unset: Tensors with uninitialized memory.
        """
        if not unset:
            return lambda tensor, path: self.take(tensor, entry, category, path)
        arbitrary = {id(tensor) for tensor in unset}
        return lambda tensor, path: self.take(tensor, entry, category, path, is_unset=id(tensor) in arbitrary)

    def take(
        self, tensor: Any, entry: str, category: str, path: str, *, is_unset: bool = False
    ) -> TensorValue | Failure:
        """Return the record of a tensor with its current value; raises only errors of the program itself."""
        try:
            meta = self._describe(tensor)
            if type(meta) is not TensorMeta:
                checked(meta, TensorMeta, "the framework", "describe")  # raises, or it is of a class derived from it
            value = TensorValue(meta, _NOTHING)
        except BaseException as caught:  # noqa: BLE001  # a plugin's failure must not reach the training
            error = kept(caught)
            self.note_failure(f"{entry} {category} {path}", error)
            return Failure(reason_of(error))
        try:
            part = tensor if self._slices is None else self._part_of(tensor, value, self._slices)
            if part is None:
                return value
            if is_unset:
                value.digest = _UNSET
            else:
                # Never reuse a digest: a kernel outside of the framework may write without changing the tensor's
                # version.
                digest = Digest()
                self._reduce(part, digest, self.reducer)
                value.digest = digest
            if self.check is not None:
                self.check.hold(part, entry, category, path, value)
            elif self.keep_tensor is not None and not is_unset and self._selection.keeps_tensors(entry):
                self.keep_tensor(part, names.tensor_file_stem(entry, category, path), value)
        except UnwrittenError as error:  # not a failure: there are no values
            value.failure = str(error)
        except BaseException as caught:  # noqa: BLE001  # as above; keep the part that is known
            error = kept(caught)
            self.note_failure(f"{entry} {category} {path}", error)
            value.failure = reason_of(error)
        return value

    def _part_of(self, tensor: Any, value: TensorValue, slices: Slices) -> Any:
        """Return the part of a tensor to record, and describe it in ``value``; ``None`` if it cannot be taken."""
        ranges = slices.ranges(value.meta.shape)
        if not ranges:
            return tensor
        part = self._narrow(tensor, ranges)
        if part is not None:
            value.sliced_from = value.meta.shape
            value.meta = msgspec.structs.replace(value.meta, shape=narrowed_shape(value.meta.shape, ranges))
        return part

    def judge(self, entry: str) -> None:
        """Pass a complete entry to the check, if there is one and all digests are known."""
        if self.check is None or not self.reducer.is_complete:
            return
        try:
            self.check.judge(entry)
        except BaseException as caught:  # noqa: BLE001  # raised by a framework or a disk
            self.note_failure(entry, kept(caught))

    def report_failures(self, step: int) -> None:
        """Log how many values or calls of a step could not be recorded."""
        if self.num_failures:
            _logger.warning("step %d: %d values or calls were not recorded, or not wholly", step, self.num_failures)
            self.num_failures = 0

    def note_failure(self, where: str, error: Exception) -> None:
        """Count a failure, and log the first of each kind."""
        self.num_failures += 1
        kind = reason_of(error)[: len(type(error).__name__) + 42]
        if kind not in self._failures_said and len(self._failures_said) < _MAX_KINDS_OF_FAILURES:
            self._failures_said.add(kind)
            _logger.warning("%s: not recorded, or not wholly (%s); training goes on", where, reason_of(error))
