"""Propagation of NaN and Inf from call to call, and from rank to rank: their origins and their impact.

An *origin* is where values that are not finite come from: a call that made them from finite inputs, a call that turned
Inf into NaN, a weight, an input of the first call that saw it, uninitialized memory, or an argument written in the
program. Every other call with such values passes on those of its origins, absorbs them, or is not involved. A dump has
no data flow, so a value is recognised by its shape and statistics, or as a last resort by its size.

Inf is often intended, for a mask, and disappears in the next softmax; NaN is not. So if a call gets both NaN and Inf,
its results are attributed to the NaN; and an origin is judged by its impact (`Impact`), not by its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from msprobe_core import names
from msprobe_core.judge.limits import conventional
from msprobe_core.judge.origins import ancestors
from msprobe_core.model import Phase, Role
from msprobe_core.order import Node
from msprobe_core.order.communication_calls import is_communication
from msprobe_core.overflow.values import Bad, BadEntry, RankValues


class OriginKind(str, Enum):
    """Kind of an origin."""

    OPERATOR = "operator"
    WEIGHT = "weight"
    INPUT = "input"
    COMMUNICATION = "communication"
    UNINITIALISED = "uninitialised memory"
    CONSTANT = "constant"


class Impact(IntEnum):
    """Impact of an origin's values."""

    NONE = 0  # finite again, or intended
    UNKNOWN = 1  # still Inf at the end of the dump
    SERIOUS = 2  # NaN, or in a gradient, another rank's data or the result


@dataclass(slots=True, eq=False)
class Origin:
    """A source of values that are not finite.

    Attributes:
        rank: Its rank.
        entry: The first call with these values: the one that made them, or has them as input.
        position: Index of that call in execution order.
        phase: Phase of that call.
        kind: Kind of the origin.
        value: Name of the value: an output, or an argument or weight.
        values: All values of the call that are not finite.
        inf_from: For an operator that made NaN, the source of its Inf input, which may have been intended; empty if its
            inputs were finite.
        num_handed_on: Number of further calls, on all ranks, that returned these values.
        first_nan: The first call with NaN from this origin; the origin itself, if it made NaN.
        healers: The first calls that made the values finite again.
        ranks: All ranks that the values reached.
        arrivals: How they reached each other rank: the rank, the receiving call, and a call that sent them.
        is_in_gradient: Whether they reached a gradient.
        is_in_result: Whether an outermost module returned them.
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
        """Whether it is Inf that is probably intended: an argument, or an input tensor with -Inf."""
        if self.kind is OriginKind.CONSTANT:
            return True
        value = next((own for own in self.values if own.name == self.value), None)
        is_low = value is not None and not value.has_nan and value.max is not None and value.max < float("inf")
        return self.kind is OriginKind.INPUT and is_low

    @property
    def impact(self) -> Impact:
        """Impact of this origin."""
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
"""APIs that return uninitialized memory."""

_OVERWRITING = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_", "cauchy_", "geometric_",
     "log_normal_", "trunc_normal_", "set_", "__setitem__", "index_fill_", "zeros_", "ones_", "constant_"}
)  # fmt: skip
"""APIs that overwrite their first argument, so that its previous values do not matter."""

_SELECTING = frozenset(
    {"__getitem__", "index_select", "gather", "narrow", "select", "split", "chunk", "unbind", "masked_select", "take",
     "take_along_dim", "max", "min", "amax", "amin", "topk", "unfold", "tensor_split"}
)  # fmt: skip
"""APIs that return a part of their input: a finite result says nothing about the rest."""

_CASTING = frozenset({"to", "long", "int", "short", "byte", "type", "astype", "cast"})
"""APIs that convert to integers, for example logarithms of distances to buckets, so that no Inf remains."""

_STATE_NAMES = frozenset({"weight", "bias", "running_mean", "running_var", "gamma", "beta", "moving_mean"})

_Origins = dict[Origin, None]
"""An ordered set."""


@dataclass(slots=True)
class _Given:
    """The origins of a call's inputs, separately for NaN and Inf."""

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
    """The values of one rank so far."""

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
        """Return the origins of a value; ``None`` if no similar value was seen.

        Args:
            value: The value.
            is_same: Whether statistics must be equal; otherwise an equal size suffices.
        """
        if not value.is_tensor:
            return self._numbers.get(repr(value.max))
        found = self._exact.get(value.identity)
        if is_same:
            return found
        return self._by_size.get((value.numel, value.has_nan)) if found is None else found

    def last(self, *, has_nan: bool) -> _Origins:
        """Return the origins of the last NaN, or else of the last Inf."""
        return self._last.get(has_nan, {})

    def find_any(self, value: Bad) -> _Origins | None:
        """Return possible origins of a value through unrecorded calls: those of the last such value."""
        if not value.is_tensor:
            return None
        return self._last.get(value.has_nan)

    def keep(self, value: Bad, origins: _Origins, *, leads_on: bool = True) -> None:
        """Store the origins of a value."""
        if not value.is_tensor:
            self._numbers[repr(value.max)] = origins
            return
        self._exact[value.identity] = origins
        self._by_size[value.numel, value.has_nan] = origins
        if leads_on:
            self._last[value.has_nan] = origins


class Spread:
    """Tracks the values of all ranks; the result is ``origins``.

    Attributes:
        origins: All origins, in the order in which they were found.
    """

    def __init__(self, ranks: Mapping[int, RankValues]) -> None:
        """Begin.

        Args:
            ranks: Values that are not finite, by rank.
        """
        self.origins: list[Origin] = []
        self._flows = {rank: _RankFlow(rank, values) for rank, values in ranks.items()}
        self._parameters = conventional().parameters

    def follow(self, rank: int, call: BadEntry, senders: Sequence[Node]) -> None:
        """Process the next call; calls come in an order in which causes precede effects.

        Args:
            rank: Its rank.
            call: The call.
            senders: The calls, on all ranks, that send the data it receives; empty if it is not communication.
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
        """Return the origins of the inputs of a communication call, on any rank."""
        flow = self._flows.get(rank)
        call = None if flow is None else flow.by_entry.get(entry)
        return _Given() if flow is None or call is None else self._given(flow, call)

    # --- inputs of a call ---------------------------------------------------------------------------------------

    def _given(self, flow: _RankFlow, call: BadEntry) -> _Given:
        """Return the origins of a call's inputs, including those of calls inside it."""
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
        # Saved values of the forward count only if the incoming gradient of the backward is finite.
        if other is not None and not (call.phase is Phase.BACKWARD and given.all):
            if (own := flow.by_entry.get(other)) is not None:
                given.update(self._given(flow, own))
            given.update(flow.had.get(other, _Given()))
        return given

    def _around(self, flow: _RankFlow, call: BadEntry) -> _Given:
        """Return substitutes for a call without recorded inputs: those of enclosing modules, and the last values."""
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
        """Return the origins of an input; a new origin if no earlier call has it."""
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
        """Return the name of a weight, in its module if possible; ``None`` if the value is not a weight."""
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

    # --- outputs of a call --------------------------------------------------------------------------------------

    def _made(self, flow: _RankFlow, call: BadEntry, made: Sequence[Bad], given: _Given, *, has_senders: bool) -> None:
        if _api_name(call.entry) in _UNINITIALISED:
            origin = self._origin(flow, call, OriginKind.UNINITIALISED, made[0].name)
            for value in made:
                flow.keep(value, {origin: None}, leads_on=False)
            return
        own: Origin | None = None
        handed_on: _Origins = {}
        for value in made:
            # A module returns values of its inner calls unchanged.
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
        """Return the input origins that explain an output; empty if the call itself is the origin."""
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
        """Record values of an inner call at its enclosing modules, which have not made them."""
        for module in ancestors(call.entry, flow.parents):
            flow.inside.setdefault(module, _Given()).add(origins, value)
            if module in flow.modules and module not in flow.by_entry and call.phase is Phase.FORWARD:
                # The module has finite values only: the Inf was absorbed in an unrecorded call.
                for origin in origins:
                    origin.healers.append((flow.rank, module))
                return

    def _origin(self, flow: _RankFlow, call: BadEntry, kind: OriginKind, value: str) -> Origin:
        origin = Origin(flow.rank, call.entry, call.position, call.phase, kind, value, call.values)
        origin.ranks[flow.rank] = None
        self.origins.append(origin)
        return origin


def _further_inputs(call: BadEntry) -> str | None:
    """Return the entry whose values a call uses too: for a backward its forward, with the saved values."""
    if call.phase is Phase.BACKWARD:
        return names.forward_of(call.entry)
    return names.backward_of_parameters(call.entry) if call.phase is Phase.PARAMETERS_GRAD else None


def _heals(call: BadEntry) -> bool:
    """Whether finite results of a call show that the NaN and Inf of its inputs are gone."""
    name = _api_name(call.entry)
    return name in _CASTING or (bool(call.num_results) and name not in _SELECTING)


def _is_made(value: Bad, call: BadEntry) -> bool:
    return value.role == Role.OUTPUT.value or call.phase is Phase.PARAMETERS_GRAD


def _api_name(entry: str) -> str:
    """Return the plain name of an API: ``Torch.empty.0.forward`` is ``empty``; empty for a module."""
    stem = None if names.is_module(entry) else names.stem_of(entry)
    return "" if stem is None else names.split_api(stem)[1].rpartition(".")[2]
