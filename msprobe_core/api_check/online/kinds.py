"""The kinds of calls that a training makes, and which calls of a step are sampled so that each kind is checked."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, cast

from msprobe_core import names
from msprobe_core.api_check.check_codes import CheckCode
from msprobe_core.api_check.online.unchecked_codes import UncheckedCode
from msprobe_core.api_check.verdict import CallVerdict, Verdict
from msprobe_core.errors import EntryNameError
from msprobe_core.findings import Finding
from msprobe_core.model import Entry, Phase, Site, TensorMeta, TensorValue

MAX_KINDS = 4096
"""Maximum number of kinds; a training whose shapes vary without end has more, and the rest is only counted."""

MAX_CALLS = 16
"""Maximum number of calls of one kind in a step that one is chosen from."""

_SURVEY_PERIOD = 64
"""Number of recorded steps after which all calls are looked at again: models change while they are trained."""

_FIRST_SECONDS = 0.02
"""Expected duration of a check before any is known."""

_MAX_TRIES = 3
"""How often a kind is tried that cannot be judged."""


class KindName(NamedTuple):
    """What the calls of one kind have in common.

    Attributes:
        api: Prefix and name, such as ``Functional.linear``.
        phase: ``forward`` or ``backward``.
        tensors: Dtypes and shapes of the tensors that the forward takes, and dtypes of its results.
    """

    api: str
    phase: str
    tensors: str


@dataclass(slots=True, kw_only=True)
class Kind:
    """One kind, and what is known of it.

    Attributes:
        num_seen: Number of its calls in the last step in which all were looked at.
        calls: Forward entries of some of them.
        num_checked: How often one was judged.
        num_tried: How often one was checked, judged or not.
        last_step: The last of these steps; ``None`` if there was none.
        seconds: Duration of the last check.
        verdicts: How often each verdict was found.
        reason: Why the last call that was sampled was not judged.
        is_closed: Whether its calls cannot be judged at all.
    """

    name: KindName
    num_seen: int = 0
    calls: list[str] = field(default_factory=list[str])
    num_checked: int = 0
    num_tried: int = 0
    last_step: int | None = None
    seconds: float | None = None
    verdicts: Counter[Verdict] = field(default_factory=Counter[Verdict])
    reason: Finding | None = None
    is_closed: bool = False

    @property
    def why_not(self) -> Finding | None:
        """Why no call of this kind has been judged; ``None`` if one has."""
        return None if self.num_checked else self.reason or Finding(UncheckedCode.WAITS)

    def note(self, verdict: CallVerdict, step: int) -> None:
        """Note the verdict on a call."""
        self.num_tried += 1
        self.last_step, self.seconds = step, verdict.seconds
        self.verdicts[verdict.verdict] += 1
        self.num_checked += verdict.verdict is not Verdict.CANNOT_TELL
        self._note_reason(verdict.reason)

    def note_unsampled(self, reason: Finding, *, was_chosen: bool) -> None:
        """Note that a call could not be sampled; ``was_chosen`` if it should have fitted."""
        self.num_tried += was_chosen
        self._note_reason(reason)

    def _note_reason(self, reason: Finding | None) -> None:
        self.reason = reason or self.reason
        self.is_closed = self.num_tried >= _MAX_TRIES and not self.num_checked


class CallSample:
    """Chooses calls: a container of the names of the entries to record.

    Of the first step all calls are looked at, without their tensors, and one of each API and first tensor is sampled.
    For later steps, calls are chosen from the kinds that this has shown, the least checked first.

    Args:
        white_list: Only calls whose names contain one of these; empty for all.
        black_list: Calls that are left out; it outranks ``white_list``.
        number: Maximum number of calls per step.
        seed: Of the choice among equal candidates.
        why_not_replayed: Returns why an API is not replayed, or ``None``.
        phases: Phases of the calls that are checked; the forward is needed to check a backward.
        most: How often calls of one kind are checked; ``None`` without a limit.
    """

    def __init__(
        self, white_list: Sequence[str], black_list: Sequence[str], number: int, seed: int,
        why_not_replayed: Callable[[Site], str | None], phases: Container[Phase] = (Phase.FORWARD, Phase.BACKWARD),
        most: int | None = None,
    ) -> None:  # fmt: skip
        self._phases, self._most = phases, most
        self._white, self._black = tuple(white_list), tuple(black_list)
        self._number = number
        self._random = random.Random(seed)  # noqa: S311  # the choice is no secret
        self._why_not_replayed = why_not_replayed
        self._why_not: dict[str, str | None] = {}
        self._chosen: frozenset[str] = frozenset()
        self._taken: dict[str, bool] = {}
        self._provisional: set[tuple[str, str, tuple[int, ...]]] = set()
        self._tensors: dict[str, str] = {}
        self._sizes: Counter[str] = Counter()  # of all tensors of a call, in bytes
        self._num_steps = 0
        self.is_survey = True
        """Whether all calls of the step are looked at."""
        self.kinds: dict[KindName, Kind] = {}
        self.num_left_out = 0
        """Number of calls that were not counted because there were too many kinds."""

    # --- inside of a step -------------------------------------------------------------------------------------

    def __contains__(self, entry: object) -> bool:
        """Whether to record an entry."""
        name = cast("str", entry)
        if self.is_survey:
            return names.is_listed(name, self._white, self._black)
        return name in self._chosen or (names.forward_of(name) or name) in self._chosen

    def takes(self, entry: str, meta: TensorMeta) -> bool:
        """Whether to copy the tensors of an entry; decided at the first tensor of its call."""
        forward = names.forward_of(entry) or entry
        taken = self._taken.get(forward)
        if taken is None:
            taken = self._taken[forward] = not self.is_survey or self._takes_at_survey(forward, meta)
        return taken

    def _takes_at_survey(self, forward: str, meta: TensorMeta) -> bool:
        api = names.stem_of(forward) or forward
        kind = (api, meta.dtype, meta.shape)
        if len(self._provisional) >= self._number or kind in self._provisional or self._why_closed(forward, api):
            return False
        self._provisional.add(kind)
        return True

    def _why_closed(self, entry: str, api: str) -> str | None:
        if api not in self._why_not:
            try:
                self._why_not[api] = self._why_not_replayed(names.parse_entry(entry))
            except EntryNameError:
                self._why_not[api] = "its name has another form"
        return self._why_not[api]

    def give_up(self, entry: str) -> None:
        """Take no further tensors of a call, and forget that some were taken."""
        self._taken[names.forward_of(entry) or entry] = False

    # --- between steps ----------------------------------------------------------------------------------------

    def look_at(self, entries: Iterable[Entry]) -> dict[str, Kind]:
        """Return the kind of each entry of a step that ends, by name; those beyond `MAX_KINDS` are left out."""
        entries = list(entries)
        if self.is_survey:
            self._sizes.clear()
            for kind in self.kinds.values():
                kind.num_seen, kind.calls = 0, []
        for entry in entries:
            if entry.phase is Phase.FORWARD:
                self._tensors[entry.name] = _tensors_of(entry)
        found: dict[str, Kind] = {}
        for entry in entries:
            forward = names.forward_of(entry.name) or entry.name
            tensors, api = self._tensors.get(forward), names.stem_of(forward)
            if tensors is None or api is None or not tensors:
                continue  # without tensors there is nothing to judge
            if entry.phase not in self._phases:
                continue
            kind = self._kind(KindName(api, entry.phase.value, tensors), forward)
            if kind is None:
                self.num_left_out += 1
                continue
            found[entry.name] = kind
            if self.is_survey:
                kind.num_seen += 1
                self._sizes[forward] += _size_of(entry)
                if len(kind.calls) < MAX_CALLS:
                    kind.calls.append(forward)
        return found

    def _kind(self, name: KindName, forward: str) -> Kind | None:
        kind = self.kinds.get(name)
        if kind is None and len(self.kinds) < MAX_KINDS:
            kind = self.kinds[name] = Kind(name=name)
            if (why := self._why_closed(forward, name.api)) is not None:
                kind.is_closed = True
                kind.reason = Finding(CheckCode.NOT_IN_TABLE, fields={"api": name.api, "why": why})
        return kind

    def expected_seconds(self, kind: Kind) -> float:
        """Return how long the check of a call of this kind is expected to take."""
        if kind.seconds is not None:
            return kind.seconds
        known = [each.seconds for each in self.kinds.values() if each.seconds is not None]
        return median(known) if known else _FIRST_SECONDS

    def wants(self, kind: Kind) -> bool:
        """Whether a further call of a kind is to be checked."""
        return not kind.is_closed and (self._most is None or kind.num_tried < self._most)

    def in_order(self, entries: Mapping[str, Kind]) -> Iterator[tuple[str, Kind]]:
        """Yield entries with their kinds in the order in which to check them."""
        return iter(sorted(entries.items(), key=lambda item: self._rank(item[1])))

    def _rank(self, kind: Kind) -> tuple[int, int, float]:
        return kind.num_tried, -1 if kind.last_step is None else kind.last_step, self._random.random()

    def next_step(self, seconds: float, size_bytes: int, *, was_recorded: bool) -> None:
        """Choose the calls of the next step that is recorded.

        Args:
            seconds: That its checks may take.
            size_bytes: That the copies of its tensors may take.
            was_recorded: Whether the step that ends was recorded.
        """
        self._taken.clear()
        self._provisional.clear()
        self._tensors.clear()
        if not was_recorded:
            return
        self._num_steps += 1
        calls = self._choose(seconds, size_bytes)
        self.is_survey = self._num_steps % _SURVEY_PERIOD == 0 or not calls
        self._chosen = frozenset(calls)

    def _choose(self, seconds: float, size_bytes: int) -> list[str]:
        calls: list[str] = []
        for kind in sorted(self.kinds.values(), key=self._rank):
            if not self.wants(kind) or not kind.calls:
                continue
            seconds -= self.expected_seconds(kind)
            if calls and (seconds < 0 or len(calls) >= self._number):
                break
            call = self._random.choice(kind.calls)
            if call in calls:
                continue
            size_bytes -= self._sizes[call]
            if calls and size_bytes < 0:
                break
            calls.append(call)
        return calls


def _tensors_of(entry: Entry) -> str:
    taken = _some([f"{_short(meta.dtype)}{list(meta.shape)}" for meta in _metas([entry.inputs, entry.input_kwargs])])
    made = _some([_short(meta.dtype) for meta in _metas(entry.outputs)])
    return f"{', '.join(taken)} -> {', '.join(made)}" if made else ""


def _size_of(entry: Entry) -> int:
    parts = [entry.inputs, entry.input_kwargs, entry.outputs, entry.output_kwargs]
    return sum(math.prod(meta.shape) * _item_size(meta.dtype) for meta in _metas(parts))


def _item_size(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else max(1, int(bits[0]) // 8)


def _some(texts: list[str]) -> list[str]:
    """Return at most `_NUM_LISTED` texts, and the number of the others: functions on lists take hundreds of tensors."""
    others = len(texts) - _NUM_LISTED
    return texts if others <= 0 else [*texts[:_NUM_LISTED], f"{others} more"]


_NUM_LISTED = 8


def _short(dtype: str) -> str:
    return dtype.rpartition(".")[2].lower()


def _metas(value: Any) -> Iterator[TensorMeta]:
    if isinstance(value, TensorValue):
        yield value.meta
    elif isinstance(value, list | dict):
        several = cast("Any", value)
        for item in several.values() if isinstance(value, dict) else several:
            yield from _metas(item)
