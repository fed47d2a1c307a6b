"""Codes of what a comparison of routings finds; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class RoutingCode(Code):
    """How the experts that two stages chose for the same tokens differ."""

    LAYERS = "rl.routing.layers"
    TOP_K = "rl.routing.top-k"
    REPEATED = "rl.routing.repeated"
    SHIFTED = "rl.routing.shifted"
    SHUFFLED = "rl.routing.shuffled"
    RENUMBERED = "rl.routing.renumbered"
    REPLAY_OFF = "rl.routing.replay-off"
    REPLAY_LAYERS = "rl.routing.replay-layers"
    SELECTION = "rl.routing.selection"
    DTYPE = "rl.routing.dtype"
    SCORES = "rl.routing.scores"
    MARGIN = "rl.routing.margin"
    WEIGHTS = "rl.routing.weights"
    WEIGHTS_FACTOR = "rl.routing.weights-factor"
    UNRELATED = "rl.routing.unrelated"
    UNEXPLAINED = "rl.routing.unexplained"
    TIES = "rl.routing.ties"
    FIRST = "rl.routing.first"
