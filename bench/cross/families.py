"""All pairs of models, by name."""

from bench.cross import reported, tuned, unseen
from bench.cross.pairs import PAIRS, Pair

__all__ = ["PAIRS", "Pair", "reported", "tuned", "unseen"]
