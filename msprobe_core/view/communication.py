"""Who communicates with whom: the communication calls of all ranks of a step, matched by `msprobe_core.order`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding
from msprobe_core.order.causality import Order
from msprobe_core.order.communication_calls import RECEIVES, SENDS, RankCalls, calls_of, kind_of
from msprobe_core.protocols.storage import Dump
from msprobe_core.view.data import Peers
from msprobe_core.view.view_codes import ViewCode

MAX_PEERS = 64
"""Maximum number of peers named at one call."""

_MANY_RANKS = 64
"""From this number of ranks on, only point-to-point messages are shown: the peers of a collective are all ranks."""

_ONE_TO_ONE = SENDS | RECEIVES | {"batch_isend_irecv"}

_Messages = dict[str, tuple[list[tuple[int, str]], list[tuple[int, str]]]]
"""By call: the receivers of its data and the senders to it, as unit and name."""


class Communication:
    """Who communicates with whom in one step."""

    def __init__(self, units: Mapping[int, int], read: Callable[[int], Dump]) -> None:
        """Read the communication calls of all ranks.

        Args:
            units: Index of the unit by rank.
            read: Returns the dump of a rank; called once per rank, and the dump is not kept.
        """
        self.notes: list[Finding] = []
        self._messages: dict[int, _Messages] = {rank: {} for rank in units}
        calls: dict[int, RankCalls] = {}
        for rank in sorted(units):
            try:
                calls[rank] = calls_of(read(rank), rank)
            except (CompareError, DumpError) as error:  # noqa: PERF203  # reading a rank costs more than the try
                self.notes.append(Finding(ViewCode.NO_COMMUNICATION, fields={"rank": rank, "why": str(error)}))
        if sum(bool(own.communicating()) for own in calls.values()) < 2:
            return
        order = Order(list(calls), calls.values())
        self.notes += order.notes
        for rank, own in calls.items():
            for entry in own.communicating():
                if len(units) <= _MANY_RANKS or kind_of(entry) in _ONE_TO_ONE:
                    self._add(rank, entry, order.senders(rank, entry), units)

    def _add(self, rank: int, entry: str, senders: Sequence[tuple[int, str]], units: Mapping[int, int]) -> None:
        for sender, name in senders:
            if sender == rank:
                continue
            received = self._messages[rank].setdefault(entry, ([], []))[1]
            received.append((units[sender], name))
            sent = self._messages[sender].setdefault(name, ([], []))[0]
            sent.append((units[rank], entry))

    def peers(self, rank: int | None) -> dict[str, Peers]:
        """Return the peers of a rank's calls, by name of the call."""
        if rank is None:
            return {}
        return {entry: _peers_of(*messages) for entry, messages in self._messages.get(rank, {}).items()}


def _peers_of(sent: Sequence[tuple[int, str]], received: Sequence[tuple[int, str]]) -> Peers:
    places = {peer: i for i, peer in enumerate(dict.fromkeys([*sent, *received]))}
    shown = list(places)[:MAX_PEERS]
    return Peers(
        peers=shown,
        sends=[places[peer] for peer in dict.fromkeys(sent) if places[peer] < MAX_PEERS],
        receives=[places[peer] for peer in dict.fromkeys(received) if places[peer] < MAX_PEERS],
        more=len(places) - len(shown),
    )
