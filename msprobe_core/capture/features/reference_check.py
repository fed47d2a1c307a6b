"""Live check of each call against another run, by checksums: equal inputs with different outputs.

The other run is an earlier one (``bench_path``), or the leader of a ``twin`` that both record checksums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from msprobe_core import names
from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.features.reference_run import ReferenceRun
from msprobe_core.capture.tensor_reader import CallCheck
from msprobe_core.config import Config
from msprobe_core.config.schema import TwinOptions
from msprobe_core.model import Level, Phase, Role, Task, TensorValue
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.ending import ending_of, sentence
from msprobe_core.store.reading import read_dump

_logger = logging.getLogger(__name__)

MAX_HELD_BYTES = 1 << 30
"""Maximum size, in bytes, of copies held for calls without a verdict; further calls are judged but not saved."""

CHECKSUM_MODES = frozenset({"md5", "xor", "hash"})
"""Values of ``summary_mode`` with which tensors are equal or different, and nothing in between."""

_INPUTS = frozenset({"input", "kwargs"})
_OUTPUT = "output"


class TensorSum(NamedTuple):
    """Shape and checksum of a tensor, for comparison."""

    shape: str
    checksum: str | None

    @property
    def form(self) -> tuple[bool, int] | None:
        """Form of the checksum, which differs between values of ``summary_mode``; ``None`` without one."""
        return None if self.checksum is None else (self.checksum.startswith("0x"), len(self.checksum))


@dataclass(frozen=True)
class RecordedSums:
    """One entry of a dump: shapes and checksums of its tensors by path."""

    is_backward: bool
    inputs: dict[str, TensorSum] = field(default_factory=dict[str, TensorSum])
    outputs: dict[str, TensorSum] = field(default_factory=dict[str, TensorSum])
    parameters: dict[str, TensorSum] = field(default_factory=dict[str, TensorSum])
    gradients: dict[str, TensorSum] = field(default_factory=dict[str, TensorSum])

    def part(self, role: Role) -> dict[str, TensorSum]:
        """Return the tensors of one role."""
        parts = {Role.INPUT: self.inputs, Role.OUTPUT: self.outputs, Role.PARAMETERS: self.parameters}
        return parts.get(role, self.gradients)


@dataclass(slots=True)
class _Held:
    """One tensor of a call without a verdict. ``kept`` is a copy, or the tensor itself if nothing can write to it."""

    category: str
    path: str
    value: TensorValue
    kept: Any
    is_copy: bool
    size_bytes: int


class BenchCheck(Feature):
    """Judges calls when their checksums become known, and saves the tensors of those that differ.

    On the host checksums are known at once: the inputs of a call are copied before it, in case it writes to them, and
    dropped after it. On a device checksums are fetched when the window ends. Until then copies are held, of the first
    calls up to `MAX_HELD_BYTES`: the first differences matter most.
    """

    def __init__(
        self,
        reference: ReferenceRun,
        max_differences: int,
        *,
        snapshot: Callable[[Any], Any],
        save: Callable[[Any, str, TensorValue], None],
        end: Callable[[], None],
    ) -> None:
        """Begin without a step.

        Args:
            reference: The other run.
            max_differences: Number of differing calls after which recording ends; -1 for no limit.
            snapshot: Copies a tensor; see `Framework`.
            save: Writes a copy under a file stem, and sets the value's ``file_name``.
            end: Ends recording.
        """
        self._reference = reference
        self._root = reference.root
        self._max = max_differences
        self._snapshot = snapshot
        self._save = save
        self._end = end
        self._step = 0
        self._bench: Mapping[str, RecordedSums] = {}
        self._form: tuple[bool, int] | None = None
        self._pending: dict[str, list[_Held] | None] = {}
        self._held_bytes = 0
        self._differing: list[str] = []
        self._has_ended = False

    @classmethod
    def make(cls, host: Host) -> BenchCheck | None:
        """Return the feature if the configuration selects it."""
        reference = checked_reference(host.config)
        if reference is None:
            return None

        options = host.config.options
        setting = "bench_path" if options.bench_path else "twin"

        def end() -> None:
            host.end_recording(f"the check against '{setting}' ended it")

        return cls(reference, options.diff_nums, snapshot=host.framework.snapshot, save=host.save, end=end)

    @property
    def call_check(self) -> CallCheck:
        """See `Feature`."""
        return self

    def begin_unit(self, step: int, rank: int | None) -> None:
        """Read the earlier run's dump of this step; without one, the step is recorded but not checked."""
        self._step, self._bench, self._form, self._pending, self._held_bytes = step, {}, None, {}, 0
        try:
            self._reference.await_unit(step, rank)
            unit, notes = self._reference.unit(step, rank)
            earlier = read_dump(unit.directory)
            self._bench = calls_in(earlier)
        except Exception as error:  # noqa: BLE001  # including errors of a third-party reader
            _logger.warning("bench_path: step %d is not checked: %s", step, error)
            return
        for note in notes:
            _logger.warning("bench_path: %s", note)
        if not (ending := ending_of(earlier)).is_whole:
            _logger.warning("bench_path: %s; calls that it lacks are not checked", sentence(unit.directory, ending))
        sums = (found for call in self._bench.values() for found in (*call.inputs.values(), *call.outputs.values()))
        self._form = next((found.form for found in sums if found.form is not None), None)
        if self._form is None:
            self._bench = {}
            _logger.warning(
                "bench_path: step %d is not checked: %s has no checksums; record it with summary_mode md5",
                step, unit.directory,
            )  # fmt: skip

    def hold(self, tensor: Any, entry: str, category: str, path: str, value: TensorValue) -> None:
        """Note a tensor of a call; it still has the value that is recorded."""
        bench = self._bench.get(entry)
        if bench is None or self._has_ended:
            return
        held = self._pending.setdefault(entry, [])
        if held is None:
            return
        found = _sum_of(value)
        if found.form not in (None, self._form):
            self._refuse()
            return
        if found.checksum is not None and category in _INPUTS and bench.inputs.get(path) != found:
            self.forget(entry)  # with other inputs, its outputs prove nothing
            self._pending[entry] = None
            return
        # No code runs between the return of a forward call and its end, so its output need not be copied.
        is_settled = found.checksum is not None and category == _OUTPUT and not bench.is_backward
        kept, size = (tensor, 0) if is_settled else self._copy(tensor)
        held.append(_Held(category, path, value, kept, not is_settled, size))

    def _copy(self, tensor: Any) -> tuple[Any, int]:
        if self._held_bytes >= MAX_HELD_BYTES:
            return None, 0
        copy = self._snapshot(tensor)
        size = getattr(copy, "nbytes", 0)
        self._held_bytes += size
        return copy, size

    def judge(self, entry: str) -> None:
        """Judge a call whose tensors and checksums are all known."""
        held = self.forget(entry)
        if not held or self._has_ended:
            return
        bench = self._bench[entry]
        found = [(item.category, item.path, _sum_of(item.value)) for item in held]
        if any(total.form not in (None, self._form) for _, _, total in found):
            self._refuse()
            return
        if {path: total for category, path, total in found if category in _INPUTS} != bench.inputs:
            return
        differing = [path for category, path, total in found if category == _OUTPUT and _differ(total, bench, path)]
        if differing:
            self._report(entry, held, differing)

    def forget(self, entry: str) -> list[_Held] | None:
        """Return the tensors held for a call, and drop them here."""
        held = self._pending.pop(entry, None)
        for item in held or ():
            self._held_bytes -= item.size_bytes
        return held

    def _report(self, entry: str, held: Sequence[_Held], differing: Sequence[str]) -> None:
        num_saved = 0
        for item in held:
            copy = item.kept if item.is_copy else self._snapshot(item.kept)
            if copy is not None:
                self._save(copy, names.tensor_file_stem(entry, item.category, item.path), item.value)
                num_saved += 1
        self._differing.append(entry)
        bench = self._bench[entry]
        what = "gradients of its inputs" if bench.is_backward else "outputs"
        parameters = {item.path: _sum_of(item.value) for item in held if item.category == Role.PARAMETERS.value}
        others = [path for path, found in parameters.items() if bench.parameters.get(path, found) != found]
        _logger.warning(
            "step %d: %s has the inputs that it has in %s, but other %s (%s)%s; %d of its %d tensors are saved%s",
            self._step, entry, self._root, what, ", ".join(differing),
            f" and other parameters ({', '.join(others)})" if others else "", num_saved, len(held),
            "" if num_saved == len(held) else ": more than can be held were waiting; select fewer calls with 'list'",
        )  # fmt: skip
        if len(self._differing) == self._max:
            _logger.warning(
                "step %d: recording ends; the first call that differs is %s (%d found, as 'diff_nums' says); "
                "training goes on", self._step, self._differing[0], self._max,
            )  # fmt: skip
            self._finish()

    def _refuse(self) -> None:
        _logger.warning(
            "step %d: recording ends: the checksums in %s are of another summary_mode, so nothing could be compared; "
            "training goes on", self._step, self._root,
        )  # fmt: skip
        self._finish()

    def _finish(self) -> None:
        self._has_ended = True
        self._pending, self._bench = {}, {}
        self._end()

    def end_unit(self, step: int) -> None:
        """Log if no call of the step differs."""
        if self._bench and not self._differing:
            _logger.info("step %d: no call with equal inputs differs from %s", step, self._root)


def checked_reference(config: Config) -> ReferenceRun | None:
    """Return the run whose checksums each call is checked against; ``None`` if the configuration asks for none."""
    if config.level is Level.DEBUG:
        return None
    if config.options.bench_path:
        return ReferenceRun(Path(config.options.bench_path).expanduser().absolute())
    if config.twin is None or config.task is not Task.TENSOR or config.options.summary_mode not in CHECKSUM_MODES:
        return None
    return reference_of(config.twin)


def reference_of(options: TwinOptions) -> ReferenceRun:
    """Return the leader of a follower."""
    return ReferenceRun(Path(options.leader).expanduser().absolute(), options.offset, options.wait)


def _sum_of(value: TensorValue) -> TensorSum:
    return TensorSum(str(list(value.meta.shape)), value.digest.checksum)


def _differ(found: TensorSum, bench: RecordedSums, path: str) -> bool:
    other = bench.outputs.get(path)
    return other is not None and are_different(found, other)


def are_different(one: TensorSum, other: TensorSum) -> bool:
    """Whether two tensors of one shape are known to have different contents."""
    if one.shape != other.shape or None in (one.checksum, other.checksum):
        return False
    return one.checksum != other.checksum


def calls_in(dump: Dump) -> dict[str, RecordedSums]:
    """Return the entries of a dump by name, in execution order."""
    from msprobe_core.store.frame import RowKind  # imports polars

    frame = dump.frame
    frame = frame.filter(frame["kind"] == RowKind.TENSOR.value)
    calls: dict[str, RecordedSums] = {}
    for entry, role, phase, key, shape, checksum in frame.select(
        "entry", "role", "phase", "key", "shape", "checksum"
    ).iter_rows():
        call = calls.setdefault(entry, RecordedSums(phase == Phase.BACKWARD.value))
        path = key.removeprefix(names.row_name(entry, Role(role), ""))
        call.part(Role(role))[path] = TensorSum(shape, checksum)
    return calls
