"""The task ``overflow_check``: record only the calls that turn finite inputs into NaN or Inf.

A call is judged once the statistics of all its tensors are known: on the host at once; on a device at the end of the
window, because nothing may wait for the device before. Until then copies of its tensors are held, for the latest calls
within `MAX_HELD_BYTES`. A module is not blamed for NaN or Inf of a call inside it, or of a parameter inside it, and a
backward is not for what its forward made. NaN or Inf that no recorded call made is reported when the step ends, if it
did harm: it was in a parameter, became NaN, or reached a gradient or the result of the outermost module.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from msprobe_core import names
from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.tensor_reader import TensorSink
from msprobe_core.model import Argument, Batch, Entry, GradientSlot, Phase, Stats, Task, TensorValue, Value
from msprobe_core.protocols.framework import Framework
from msprobe_core.store.stack_text import frames_of_user

_logger = logging.getLogger(__name__)

MAX_HELD_BYTES = 1 << 30
"""Maximum memory, in bytes, of copies that wait for a verdict; the oldest are dropped first."""


class _Copy(NamedTuple):
    """A copy of a tensor, for its record."""

    snapshot: Any
    stem: str
    value: TensorValue
    size_bytes: int


class _Given(IntEnum):
    """How a call was given NaN or Inf, the most telling first."""

    PARAMETER = 0
    NAN = 1
    INF = 2  # perhaps a mask
    ARGUMENT = 3  # a number, as of `masked_fill`


class OverflowWatch(Feature):
    """Holds copies of tensors, judges calls, and counts culprits."""

    def __init__(self, framework: Framework, write: TensorSink, limit: int, on_pressure: Callable[[], None]) -> None:
        """Begin without results.

        Args:
            framework: Copies tensors.
            write: Receives the tensors of recorded calls.
            limit: Number of recorded calls after which recording ends; -1 for no limit.
            on_pressure: Called when the copies take too much memory; has complete calls judged.
        """
        self._snapshot = framework.snapshot
        self._write = write
        self._limit = limit
        self._lock = threading.RLock()
        self._copies: dict[int, _Copy] = {}  # by id of the value, oldest first
        self._num_bytes = 0
        self.max_bytes = MAX_HELD_BYTES
        self._on_pressure = on_pressure
        self._num_kept = 0
        self._num_steps = 0
        self._num_given = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._num_found = 0
        self._first: Entry | None = None
        self._explained: set[str] = set()
        # Calls that make NaN or Inf of a parameter, or of what their forward made, and the modules around them.
        self._excused: set[str] = set()
        self._healthy_backwards: set[str] = set()
        self._special_forwards: set[str] = set()
        self._given: dict[_Given, str] = {}  # the first of each kind, in words
        self._has_made_nan = False
        self._is_harmed = False
        self._stacks: dict[str, tuple[str, ...]] = {}

    @classmethod
    def make(cls, host: Host) -> OverflowWatch | None:
        """Return the feature if the configuration selects it."""
        if host.config.task is not Task.OVERFLOW_CHECK:
            return None
        return cls(host.framework, host.save, host.config.options.overflow_nums, host.write_backlog)

    @property
    def tensor_sink(self) -> TensorSink:
        """See `Feature`."""
        return self.hold

    @property
    def is_over(self) -> bool:
        """Whether the configured number of calls has been recorded."""
        return self._limit != -1 and self._num_kept >= self._limit

    # --- copies -----------------------------------------------------------------------------------------------

    def hold(self, tensor: Any, stem: str, value: TensorValue) -> None:
        """Copy a tensor until its call is judged."""
        if self.is_over:
            return
        snapshot = self._snapshot(tensor)
        if snapshot is None:
            return
        copy = _Copy(snapshot, stem, value, int(getattr(snapshot, "nbytes", 0)))
        if self._num_bytes + copy.size_bytes > self.max_bytes:
            self._on_pressure()
        with self._lock:
            self._copies[id(value)] = copy
            self._num_bytes += copy.size_bytes
            while self._num_bytes > self.max_bytes:
                self._take_out(next(iter(self._copies)))

    def _take_out(self, key: int) -> _Copy | None:
        copy = self._copies.pop(key, None)
        self._num_bytes -= 0 if copy is None else copy.size_bytes
        return copy

    def end_window(self, *, was_running: bool = False) -> None:  # noqa: ARG002
        """Drop all copies: the window has ended, and the remaining calls are not judged."""
        with self._lock:
            self._copies.clear()
            self._num_bytes = 0

    def _release(self, value: TensorValue, *, keeps: bool) -> bool:
        """Drop the copy of a value, written first if ``keeps``; false if a wanted copy had been dropped before."""
        copy = self._take_out(id(value))
        if copy is None:
            return not keeps or value.digest.stats == Stats()  # uninitialized memory is not copied
        if keeps:
            self._write(copy.snapshot, copy.stem, value)
        return True

    # --- verdicts ---------------------------------------------------------------------------------------------

    def sift(self, batch: Batch, step: int) -> Batch:
        """Return the culprits to write from a batch whose digests are complete, with the parents around them."""
        found: list[Entry] = []
        parents: dict[str, str | None] = {}
        with self._lock:
            # Judge parameter gradients last: they are compared with their module's backward, which may follow them.
            late = [entry for entry in batch.entries if entry.phase is Phase.PARAMETERS_GRAD]
            for entry in [*(e for e in batch.entries if e.phase is not Phase.PARAMETERS_GRAD), *late]:
                is_culprit = self._is_culprit(entry)
                if is_culprit:
                    found.append(entry)
                if is_culprit or entry.name in self._explained:
                    if entry.name in batch.parents:
                        parents[entry.name] = entry.parent
                    if entry.parent is not None:
                        self._explained.add(entry.parent)
                elif entry.name in self._excused and entry.parent is not None:
                    self._excused.add(entry.parent)
            found.sort(key=lambda entry: entry.sequence)
            kept = [entry for entry in found if self._count(entry, step)]
            keeping = {id(entry) for entry in kept}
            for entry in batch.entries:
                values = [leaf for leaf in _leaves(_parts(entry)) if isinstance(leaf, TensorValue)]
                num_lost = sum(not self._release(value, keeps=id(entry) in keeping) for value in values)
                if num_lost:
                    _logger.warning(
                        "%s: %d of its %d tensors are not kept, because more than %d MiB were recorded since; record "
                        'this call alone, with "list": ["%s"]',
                        entry.name, num_lost, len(values), self.max_bytes >> 20, entry.name,
                    )  # fmt: skip
        return Batch(kept, parents)

    def _is_culprit(self, entry: Entry) -> bool:
        if entry.stack is not None:
            self._stacks[entry.name] = entry.stack
        made = _special_tensors(_made(entry))
        if entry.phase is Phase.PARAMETERS_GRAD:
            self._is_harmed |= bool(made)
            backward = names.backward_of_parameters(entry.name)
            return bool(made) and backward in self._healthy_backwards and not self._has_special_forward(backward)
        specials = [leaf for leaf in _leaves(_inputs(entry)) if _is_special(leaf)]
        if specials:
            self._note_given(entry, specials)
        if made:
            self._note_made(entry, made)
        if specials or entry.name in self._explained:
            return False
        if entry.phase is Phase.BACKWARD and not made:
            self._healthy_backwards.add(entry.name)
        return bool(made) and entry.name not in self._excused

    def _has_special_forward(self, backward: str) -> bool:
        return names.forward_of(backward) in self._special_forwards

    def _note_given(self, entry: Entry, specials: list[TensorValue | Argument]) -> None:
        """Note a call that was given NaN or Inf, unless an earlier call can have made it."""
        counts = [_counts_of(leaf) for leaf in specials if isinstance(leaf, TensorValue)]
        parameters = _special_parameters(entry)
        if parameters:
            what = f"the parameter{'s' * (len(parameters) > 1)} {', '.join(parameters)} of {entry.name}"
            self._given.setdefault(_Given.PARAMETER, what)
            return
        has_nan = any(num_nan for num_nan, _ in counts)
        if has_nan and not self._has_made_nan:
            self._given.setdefault(_Given.NAN, f"the inputs of {entry.name}")
        elif counts and not self._special_forwards:
            self._given.setdefault(_Given.INF, f"the inputs of {entry.name}")
        elif not counts:
            self._given.setdefault(_Given.ARGUMENT, f"the inputs of {entry.name}")

    def _note_made(self, entry: Entry, made: list[tuple[int, int]]) -> None:
        """Note what a call with NaN or Inf in its results means for others and for the step."""
        has_nan = any(num_nan for num_nan, _ in made)
        self._has_made_nan |= has_nan
        if entry.phase is Phase.BACKWARD:
            self._is_harmed = True
            if self._has_special_forward(entry.name):
                self._excused.add(entry.name)
            return
        self._special_forwards.add(entry.name)
        self._is_harmed |= has_nan or (names.is_module(entry.name) and entry.parent is None)
        if _special_parameters(entry):
            self._is_harmed = True  # no parameter is a mask
            self._excused.add(entry.name)

    def _count(self, entry: Entry, step: int) -> bool:
        """Count a culprit, and return whether to record it."""
        self._num_found += 1
        if self._first is None:
            self._first = entry
            _logger.warning("step %d: overflow: %s", step, self._describe(entry))
        if self.is_over:
            return False
        self._num_kept += 1
        return True

    def _describe(self, entry: Entry) -> str:
        num_nan, num_inf = (sum(column) for column in zip(*_special_tensors(_made(entry)), strict=True))
        stack = entry.stack or self._stacks.get(names.forward_of(entry.name) or "", ())
        frames = frames_of_user(stack)
        origin = f"; called from {' '.join(frames[0].split())}" if frames else ""
        return f"{entry.name} makes {num_nan} NaN and {num_inf} Inf of finite inputs{origin}"

    # --- reports ----------------------------------------------------------------------------------------------

    def end_unit(self, step: int) -> None:
        """Log the result of a step, and begin the next."""
        self._num_steps += 1
        if self._first is None and self._given and self._is_harmed:
            self._num_given += 1
            first = self._given[min(self._given)]
            _logger.warning("step %d: no recorded call makes NaN or Inf of finite inputs, but it is in %s", step, first)
        elif self._first is None:
            _logger.info("step %d: no overflow", step)
        else:
            _logger.warning(
                "step %d: calls that make NaN or Inf of finite inputs: %d, the first %s; kept so far: %d%s",
                step,
                self._num_found,
                self._first.name,
                self._num_kept,
                ", which is what 'overflow_nums' asks for, so recording ends" if self.is_over else "",
            )
        self.end_window()
        self._begin_step()

    def close(self) -> None:
        """Log if no overflow was found in any step."""
        if self._num_steps and not self._num_kept and not self._num_given:
            _logger.warning("no overflow: in %d steps no call made NaN or Inf of finite inputs", self._num_steps)


def _inputs(entry: Entry) -> list[Any]:
    own = [entry.inputs, entry.input_kwargs]
    return own if entry.phase is Phase.BACKWARD else [*own, entry.parameters]


def _special_parameters(entry: Entry) -> list[str]:
    """Return the names of the parameters with NaN or Inf that a call of a module was given."""
    if entry.phase is not Phase.FORWARD or not isinstance(entry.parameters, dict):
        return []
    return [str(name) for name, value in entry.parameters.items() if any(map(_is_special, _leaves(value)))]


def _made(entry: Entry) -> list[Any]:
    return [entry.parameters] if entry.phase is Phase.PARAMETERS_GRAD else [entry.outputs, entry.output_kwargs]


def _parts(entry: Entry) -> list[Any]:
    return [entry.inputs, entry.input_kwargs, entry.outputs, entry.output_kwargs, entry.parameters]


def _leaves(value: Value | list[Any]) -> Iterator[TensorValue | Argument]:
    if isinstance(value, GradientSlot):
        value = value.value
    if isinstance(value, TensorValue | Argument):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


def _special_tensors(parts: list[Any]) -> list[tuple[int, int]]:
    """Return the counts of NaN and Inf of each tensor that contains any."""
    counts = [_counts_of(leaf) for leaf in _leaves(parts) if isinstance(leaf, TensorValue)]
    return [numbers for numbers in counts if any(numbers)]


def _is_special(leaf: TensorValue | Argument) -> bool:
    """Whether a value is, or contains, NaN or Inf. A tensor without statistics counts as finite."""
    if isinstance(leaf, TensorValue):
        return any(_counts_of(leaf))
    fields = leaf.fields.values() if leaf.fields is not None else [leaf.value]
    return not _are_finite(fields)


def _counts_of(value: TensorValue) -> tuple[int, int]:
    """Return the numbers of NaN and Inf; without counts, 1 for at least one."""
    stats = value.digest.stats or Stats()
    if stats.num_nan is not None and stats.num_inf is not None:
        return stats.num_nan, stats.num_inf
    bounds = [bound for bound in (stats.max, stats.min) if isinstance(bound, float)]
    return int(any(map(math.isnan, bounds))), int(any(map(math.isinf, bounds)))


def _are_finite(values: Iterable[Any]) -> bool:
    return all(math.isfinite(value) for value in values if isinstance(value, float))
