"""Follow NaN and Inf from call to call, and from rank to rank: who made them, and what became of them.

An *origin* is where values that are not finite come from: a call that made them of finite inputs, a call that turned
Inf into NaN, a weight, what was given to the first call that saw it, memory that nobody had set, an argument that the
program wrote itself. Every other call that has such values hands on those of its origins, heals them, or is not
concerned. A dump has no edges, so a value is known again by its shape and statistics, at last by its size.

Inf is often made on purpose, for a mask, and is gone behind the next softmax; NaN is not. So what a call makes of NaN
and Inf comes from the NaN, and an origin is judged by what became of it (`Impact`), not by when it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from msprobe_core import names
from msprobe_core.judge.limits import conventional
from msprobe_core.model import Phase, Role
from msprobe_core.order import Node
from msprobe_core.order.calls import is_communication
from msprobe_core.overflow.values import Bad, BadEntry, RankValues


class OriginKind(str, Enum):
    """What an origin is."""

    OPERATOR = "operator"
    WEIGHT = "weight"
    INPUT = "input"
    COMMUNICATION = "communication"
    UNINITIALISED = "uninitialised memory"
    CONSTANT = "constant"


class Impact(IntEnum):
    """What became of what an origin made."""

    NONE = 0  # finite again, or meant
    UNKNOWN = 1  # still Inf where the dump ends
    SERIOUS = 2  # NaN, or in a gradient, another rank's data or the result


@dataclass(slots=True, eq=False)
class Origin:
    """Where values that are not finite come from.

    Attributes:
        rank: Where.
        entry: The first call that has them: the one that made them, or was given them.
        position: Its place in execution order.
        phase: Of that call.
        kind: What it is.
        value: Name of the value: an output, or an argument or weight.
        values: All values of the call that are not finite.
        inf_from: Where an operator that made NaN has got the Inf from that it made it of, which may have been meant;
            empty if what it got was finite.
        num_handed_on: How many calls of all ranks have returned it besides.
        first_nan: The first call that has NaN of it; itself, if it made NaN.
        healers: The first calls that made it finite again.
        ranks: All that it came to.
        arrivals: How it came to each other rank: the rank, the call that received it, and one that sent it.
        is_in_gradient: Whether a gradient has it.
        is_in_result: Whether an outermost module returned it.
    """

    rank: int
    entry: str
    position: int
    phase: Phase
    kind: OriginKind
    value: str
    values: Sequence[Bad]
    inf_from: str = ""
    num_handed_on: int = 0
    first_nan: Node | None = None
    healers: list[Node] = field(default_factory=list[Node])
    ranks: dict[int, None] = field(default_factory=dict[int, None])
    arrivals: list[tuple[int, str, Node]] = field(default_factory=list[tuple[int, str, Node]])
    is_in_gradient: bool = False
    is_in_result: bool = False

    @property
    def node(self) -> Node:
        """Rank and entry."""
        return self.rank, self.entry

    @property
    def is_mask(self) -> bool:
        """Whether it is Inf that the program may well have meant: an argument, or a tensor with -Inf that it passes."""
        if self.kind is OriginKind.CONSTANT:
            return True
        value = next((own for own in self.values if own.name == self.value), None)
        is_low = value is not None and not value.has_nan and value.max is not None and value.max < float("inf")
        return self.kind is OriginKind.INPUT and is_low

    @property
    def impact(self) -> Impact:
        """What became of it."""
        if self.kind is OriginKind.CONSTANT:
            is_lost = self.first_nan is not None and (self.is_in_result or len(self.ranks) > 1)
            return Impact.SERIOUS if self.is_in_gradient or is_lost else Impact.NONE
        if self.first_nan is not None or self.is_in_gradient or len(self.ranks) > 1:
            return Impact.SERIOUS
        is_unused = self.kind is OriginKind.UNINITIALISED and not self.num_handed_on
        if is_unused or (self.healers and self.kind is not OriginKind.WEIGHT):
            return Impact.NONE
        return Impact.SERIOUS if self.is_in_result else Impact.UNKNOWN


_UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "Empty"}
)
"""APIs that return memory as it is."""

_OVERWRITING = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_", "cauchy_", "geometric_",
     "log_normal_", "trunc_normal_", "set_", "__setitem__", "index_fill_", "zeros_", "ones_", "constant_"}
)  # fmt: skip
"""APIs whose first argument is only written to, as far as its values before matter."""

_SELECTING = frozenset(
    {"__getitem__", "index_select", "gather", "narrow", "select", "split", "chunk", "unbind", "masked_select", "take",
     "take_along_dim", "max", "min", "amax", "amin", "topk", "unfold", "tensor_split"}
)  # fmt: skip
"""APIs that return some of what they get: that it is finite says nothing of the rest."""

_CASTING = frozenset({"to", "long", "int", "short", "byte", "type", "astype", "cast"})
"""APIs that make integers of what they get, as buckets of distances are made of logarithms: no Inf is left."""

_STATE_NAMES = frozenset({"weight", "bias", "running_mean", "running_var", "gamma", "beta", "moving_mean"})

_Origins = dict[Origin, None]
"""A set that keeps its order."""


@dataclass(slots=True)
class _Given:
    """The origins of what a call has got, by what they have made of it."""

    nan: _Origins = field(default_factory=dict[Origin, None])
    inf: _Origins = field(default_factory=dict[Origin, None])

    def add(self, origins: Iterable[Origin], value: Bad) -> None:
        side = self.nan if value.has_nan else self.inf
        side.update(dict.fromkeys(origins))

    def update(self, other: _Given) -> None:
        self.nan.update(other.nan)
        self.inf.update(other.inf)

    @property
    def all(self) -> _Origins:
        return {**self.nan, **self.inf}


class _RankFlow:
    """What is known of one rank so far."""

    def __init__(self, rank: int, values: RankValues) -> None:
        self.rank = rank
        self.parents = values.parents
        self.modules = values.modules
        self.by_entry = {call.entry: call for call in values.entries}
        self._exact: dict[tuple[object, ...], _Origins] = {}
        self._by_size: dict[tuple[int | None, bool], _Origins] = {}
        self._numbers: dict[str, _Origins] = {}
        self._last: dict[bool, _Origins] = {}
        self.given: dict[str, _Given] = {}
        self.inside: dict[str, _Given] = {}
        self.had: dict[str, _Given] = {}

    def find(self, value: Bad, *, is_same: bool = False) -> _Origins | None:
        """Return where a value comes from; ``None`` if nothing like it was seen.

        Args:
            value: The value.
            is_same: Whether one of the same size is not enough.
        """
        if not value.is_tensor:
            return self._numbers.get(repr(value.max))
        found = self._exact.get(value.identity)
        if is_same:
            return found
        return self._by_size.get((value.numel, value.has_nan)) if found is None else found

    def last(self, *, has_nan: bool) -> _Origins:
        """Return where the last NaN, or else the last Inf, comes from."""
        return self._last.get(has_nan, {})

    def find_any(self, value: Bad) -> _Origins | None:
        """Return where a value may come from through what was not recorded: what was seen last."""
        if not value.is_tensor:
            return None
        return self._last.get(value.has_nan)

    def keep(self, value: Bad, origins: _Origins, *, leads_on: bool = True) -> None:
        """Take note of a value."""
        if not value.is_tensor:
            self._numbers[repr(value.max)] = origins
            return
        self._exact[value.identity] = origins
        self._by_size[value.numel, value.has_nan] = origins
        if leads_on:
            self._last[value.has_nan] = origins


class Spread:
    """Follows the values of all ranks; see `origins` for the result.

    Attributes:
        origins: All origins, in the order in which they were met.
    """

    def __init__(self, ranks: Mapping[int, RankValues]) -> None:
        """Begin.

        Args:
            ranks: What is not finite on each rank.
        """
        self.origins: list[Origin] = []
        self._flows = {rank: _RankFlow(rank, values) for rank, values in ranks.items()}
        self._parameters = conventional().parameters

    def follow(self, rank: int, call: BadEntry, senders: Sequence[Node]) -> None:
        """Take the next call, in an order in which causes come before effects.

        Args:
            rank: Whose it is.
            call: The call.
            senders: The calls, of all ranks, that send what it receives; empty if it is no communication.
        """
        flow = self._flows[rank]
        given = self._given(flow, call)
        made = [value for value in call.values if _is_made(value, call)]
        received = given
        if senders:
            received = _Given()
            for node in senders:
                sent = self._sent(*node)
                received.update(sent)
                for origin in sent.all if made else ():
                    if rank not in origin.ranks and node[0] != rank:
                        origin.arrivals.append((rank, call.entry, node))
                        origin.ranks[rank] = None
        if made:
            self._made(flow, call, made, received, has_senders=bool(senders))
        elif call.phase is Phase.FORWARD and _heals(call):
            for origin in given.all:
                origin.healers.append((rank, call.entry))
        for origin in given.all:
            origin.ranks[rank] = None

    def _sent(self, rank: int, entry: str) -> _Given:
        """Return what a call of communication was given, on any rank."""
        flow = self._flows.get(rank)
        call = None if flow is None else flow.by_entry.get(entry)
        return _Given() if flow is None or call is None else self._given(flow, call)

    # --- what a call was given ----------------------------------------------------------------------------------

    def _given(self, flow: _RankFlow, call: BadEntry) -> _Given:
        """Return the origins of what a call has got, also from what was called inside it."""
        if call.entry in flow.given:
            return flow.given[call.entry]
        given = flow.given[call.entry] = _Given()
        name = _api_name(call.entry)
        for value in call.values:
            if value.role not in {Role.INPUT.value, Role.PARAMETERS.value}:
                continue
            if value.path == "0" and name in _OVERWRITING:
                continue
            given.add(self._source(flow, call, value), value)
        if not call.has_inputs and call.phase is Phase.FORWARD:
            given.update(self._around(flow, call))
        given.update(flow.inside.get(call.entry, _Given()))
        other = _further_inputs(call)
        # What a forward has saved counts where the gradient that reached the backward is finite.
        if other is not None and not (call.phase is Phase.BACKWARD and given.all):
            if (own := flow.by_entry.get(other)) is not None:
                given.update(self._given(flow, own))
            given.update(flow.had.get(other, _Given()))
        return given

    def _around(self, flow: _RankFlow, call: BadEntry) -> _Given:
        """Return what a call has got of which no input was recorded: what modules around it got, or what was last."""
        given = _Given()
        for module in ancestors(call.entry, flow.parents):
            own = flow.by_entry.get(module)
            for value in own.values if own is not None else ():
                if own is not None and value.role == Role.INPUT.value:
                    given.add(self._source(flow, own, value), value)
        given.nan.update(flow.last(has_nan=True))
        given.inf.update(flow.last(has_nan=False))
        return given

    def _source(self, flow: _RankFlow, call: BadEntry, value: Bad) -> _Origins:
        """Return where an input comes from; a new origin if nothing before has it."""
        kind, name = OriginKind.INPUT if value.is_tensor else OriginKind.CONSTANT, value.name
        parameter = self._parameter(flow, call, value)
        if parameter is None:
            found = flow.find(value) or flow.find_any(value)
        else:
            kind, name = OriginKind.WEIGHT, parameter
            found = flow.find(value, is_same=True)
        if found is None:
            origin = self._origin(flow, call, kind, name)
            if value.has_nan and kind is not OriginKind.CONSTANT:
                origin.first_nan = origin.node
            found = {origin: None}
        flow.keep(value, found, leads_on=False)
        return found

    def _parameter(self, flow: _RankFlow, call: BadEntry, value: Bad) -> str | None:
        """Return the name of a weight, as the module says it that has it; ``None`` if the value is none."""
        if value.role == Role.PARAMETERS.value:
            return value.name
        parent = flow.by_entry.get(flow.parents.get(call.entry) or "")
        for own in parent.values if parent is not None else ():
            if own.role == Role.PARAMETERS.value and own.identity == value.identity:
                return own.name
        places = self._parameters.get(_api_name(call.entry), ())
        if call.phase is Phase.FORWARD and (value.path in map(str, places) or value.path in _STATE_NAMES):
            return value.name
        return None

    # --- what it made of it -------------------------------------------------------------------------------------

    def _made(self, flow: _RankFlow, call: BadEntry, made: Sequence[Bad], given: _Given, *, has_senders: bool) -> None:
        if _api_name(call.entry) in _UNINITIALISED:
            origin = self._origin(flow, call, OriginKind.UNINITIALISED, made[0].name)
            for value in made:
                flow.keep(value, {origin: None}, leads_on=False)
            return
        own: Origin | None = None
        handed_on: _Origins = {}
        for value in made:
            # A module returns what a call inside it has made, as it is.
            known = flow.find(value, is_same=True) if names.is_module(call.entry) else None
            origins = known or self._cause(value, given)
            if not origins:
                if own is None:
                    is_sent = has_senders or is_communication(call.entry)
                    kind = OriginKind.COMMUNICATION if is_sent else OriginKind.OPERATOR
                    own = self._origin(flow, call, kind, value.name)
                    own.inf_from = next((o.value for o in given.inf), "")
                origins = {own: None}
            else:
                handed_on.update(origins)
            flow.keep(value, origins)
            for origin in origins:
                self._reach(origin, flow, call, value)
            had = flow.had.setdefault(call.entry, _Given())
            had.add(origins, value)
            self._tell_parents(flow, call, origins, value)
        for origin in handed_on:
            origin.num_handed_on += 1

    @staticmethod
    def _cause(value: Bad, given: _Given) -> _Origins:
        """Return which of the origins of what a call was given explain what it returned; none if it did it itself."""
        if value.has_nan and given.nan:
            return given.nan
        others: _Origins = {origin: None for origin in given.all if not origin.is_mask}
        return others if others or value.has_nan else given.all

    @staticmethod
    def _reach(origin: Origin, flow: _RankFlow, call: BadEntry, value: Bad) -> None:
        origin.ranks[flow.rank] = None
        if value.has_nan and origin.first_nan is None:
            origin.first_nan = (flow.rank, call.entry)
        if call.phase in {Phase.BACKWARD, Phase.PARAMETERS_GRAD}:
            origin.is_in_gradient = True
        elif names.is_module(call.entry) and flow.parents.get(call.entry) is None:
            origin.is_in_result = True

    @staticmethod
    def _tell_parents(flow: _RankFlow, call: BadEntry, origins: _Origins, value: Bad) -> None:
        """What a call inside has made is not made by the modules around it."""
        for module in ancestors(call.entry, flow.parents):
            flow.inside.setdefault(module, _Given()).add(origins, value)
            if module in flow.modules and module not in flow.by_entry and call.phase is Phase.FORWARD:
                # It has nothing but finite values: the Inf has gone in a call that was not recorded.
                for origin in origins:
                    origin.healers.append((flow.rank, module))
                return

    def _origin(self, flow: _RankFlow, call: BadEntry, kind: OriginKind, value: str) -> Origin:
        origin = Origin(flow.rank, call.entry, call.position, call.phase, kind, value, call.values)
        origin.ranks[flow.rank] = None
        self.origins.append(origin)
        return origin


def ancestors(entry: str, parents: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the calls around a call, the innermost first."""
    seen = {entry}  # the file may say that a call encloses itself
    parent = parents.get(entry)
    while parent is not None and parent not in seen:
        yield parent
        seen.add(parent)
        parent = parents.get(parent)


def _further_inputs(call: BadEntry) -> str | None:
    """Return the entry whose values a call uses too: a backward what its forward has saved."""
    if call.phase is Phase.BACKWARD:
        return names.forward_of(call.entry)
    return names.backward_of_parameters(call.entry) if call.phase is Phase.PARAMETERS_GRAD else None


def _heals(call: BadEntry) -> bool:
    """Whether what a call returns, which is finite, says that nothing is left of the NaN and Inf that it got."""
    name = _api_name(call.entry)
    return name in _CASTING or (bool(call.num_results) and name not in _SELECTING)


def _is_made(value: Bad, call: BadEntry) -> bool:
    return value.role == Role.OUTPUT.value or call.phase is Phase.PARAMETERS_GRAD


def _api_name(entry: str) -> str:
    """Return the plain name of an API: ``Torch.empty.0.forward`` is ``empty``; empty for a module."""
    stem = None if names.is_module(entry) else names.stem_of(entry)
    return "" if stem is None else names.split_api(stem)[1].rpartition(".")[2]
