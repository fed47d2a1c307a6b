"""Two recorded routings of the same tokens: where they choose other experts, by how much, and which cause explains it.

A router chooses the experts with the highest scores. Rounding changes scores a little, so that two sound engines choose
otherwise where two scores are nearly equal: a tie. What a router chooses in later layers follows from what was chosen
before, so scores are judged for tokens for which all earlier choices are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from msprobe_core.judge.limits import Precision, conventional
from msprobe_core.judge.noise.measures import Measure
from msprobe_core.judge.noise.null_distribution import EXTREME_LIMIT, LEAST_LIMITS
from msprobe_core.rl.files import Array
from msprobe_core.rl.floors import module_floor
from msprobe_core.rl.routing_files import RoutedTokens, Routing, RoutingRow

CALLS_PER_LAYER = 14
"""Module calls of one layer, by which errors grow up to its router."""

MANY = 0.3
"""Share of tokens with other experts in the first layer from which the order of tokens or experts is in question."""

_EXPLAINS = 0.8
"""Share of choices that must be equal after a displacement or renumbering to name it."""

_MAX_SHIFT = 3
_LEAST_TOKENS = 4
_FOLLOWS = 0.98
"""Share of tokens for which a router's own scores must explain its choice: with a bias or groups they do not."""


class Order(str, Enum):
    """What the tokens or experts of one side are, compared with the other's."""

    SHIFTED = "shifted"
    SHUFFLED = "shuffled"
    RENUMBERED = "renumbered"


class Replay(str, Enum):
    """Whether a side uses the other side's choices in place of its own router's."""

    APPLIED = "applied"
    OFF = "off"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The first token with other experts in a layer.

    Attributes:
        sample: Id of its sample.
        position: Its number in the sample, from 0.
        in_response: Its number in the response, from 0; ``None`` in the prompt.
        target: Experts of the target.
        golden: Experts of golden.
    """

    sample: str
    position: int
    in_response: int | None
    target: tuple[int, ...]
    golden: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LayerRouting:
    """One layer of two routings.

    Attributes:
        layer: Its name.
        tokens: Number of tokens.
        different: Number of those with other experts.
        fresh: Number of tokens for which all layers before it chose alike.
        fresh_different: Number of those with other experts here.
        last_only: Share of the tokens with other experts that have one other expert; a tie exchanges one.
        score_error: Median relative difference of the router's scores of fresh tokens; of its weights, if scores were
            not recorded; ``None`` if neither was.
        score_floor: How large rounding makes it.
        margin: By how much the experts that golden chose, and target did not, were ahead of those chosen in their
            place, at the token where this is largest, in units of the noise of the scores; ``None`` if unknown.
        replay: Whether the target uses golden's choices.
        own_differs: Number of tokens for which the target's own scores give other experts than golden chose; ``None``
            if that is not known.
        follows: Share of tokens whose experts are those with the highest scores, in target and golden; ``None`` if
            unknown.
        weight_error: Median relative difference of the weights of tokens with the same experts; ``None`` if unknown.
        weight_factor: What golden's weights are multiplied by to give the target's, if that is one number.
        first: The first token with other experts.
    """

    layer: str
    tokens: int
    different: int
    fresh: int
    fresh_different: int
    last_only: float
    score_error: float | None
    score_floor: float
    margin: float | None
    replay: Replay
    own_differs: int | None
    follows: tuple[float | None, float | None]
    weight_error: float | None
    weight_factor: float | None
    first: FirstDifference | None

    @property
    def share(self) -> float:
        """Share of tokens with other experts."""
        return self.different / self.tokens if self.tokens else 0.0

    @property
    def score(self) -> float | None:
        """The difference of the scores, as a multiple of what passes; ``None`` if it is not known."""
        return None if self.score_error is None else self.score_error / self.score_floor / LEAST_LIMITS[Measure.REL_L2]

    @property
    def is_beyond_ties(self) -> bool:
        """Whether rounding explains neither the difference of the scores nor that of the choices."""
        return (self.score is not None and self.score > 1) or (self.margin is not None and self.margin > EXTREME_LIMIT)

    @property
    def chooses_otherwise(self) -> bool:
        """Whether the target does not choose the experts with its own highest scores, though golden does."""
        target, golden = self.follows
        return target is not None and target < _FOLLOWS and (golden is None or golden >= _FOLLOWS)


@dataclass(frozen=True, kw_only=True)
class RoutingPair:
    """Two routings of the same tokens, aligned.

    Attributes:
        target: Under test.
        golden: The other.
        sample: For each token, the number of its sample in ``ids``.
        position: Its number in the sample.
        prompt_length: Length of its prompt.
        ids: Ids of the samples.
        missing: Number of target's samples that golden does not have.
    """

    target: RoutedTokens
    golden: RoutedTokens
    sample: Array
    position: Array
    prompt_length: Array
    ids: Sequence[str]
    missing: int

    @cached_property
    def differs(self) -> Array:
        """Whether other experts were chosen, ``[tokens, layers]``; their order does not matter."""
        return (np.sort(self.target.experts, axis=-1) != np.sort(self.golden.experts, axis=-1)).any(axis=-1)

    @property
    def is_alike(self) -> bool:
        """Whether the two have equally many layers and chosen experts."""
        return self.target.experts.shape == self.golden.experts.shape


def paired(target: Routing, golden: Routing) -> RoutingPair:
    """Return two routings for the tokens that both have; of a sample that one has twice, its first occurrence."""
    known: dict[str, tuple[int, RoutingRow]] = {}
    for begin, sample in zip(golden.begins, golden.samples, strict=True):
        known.setdefault(sample.id, (begin, sample))
    places: list[tuple[Array, Array]] = []
    ids: dict[str, None] = {}
    lengths, prompts = list[int](), list[int]()
    for begin, sample in zip(target.begins, target.samples, strict=True):
        if sample.id not in known or sample.id in ids:
            continue
        other_begin, other = known[sample.id]
        length = min(sample.length, other.length)
        ids[sample.id] = None
        places.append((np.arange(begin, begin + length), np.arange(other_begin, other_begin + length)))
        lengths.append(length)
        prompts.append(sample.prompt_length)
    own, others = (np.concatenate([pair[side] for pair in places] or [np.empty(0, np.int64)]) for side in (0, 1))
    return RoutingPair(
        target=target.tokens.where(own),
        golden=golden.tokens.where(others),
        sample=np.repeat(np.arange(len(lengths)), lengths),
        position=np.concatenate([np.arange(length) for length in lengths] or [np.empty(0, np.int64)]),
        prompt_length=np.repeat(prompts, lengths),
        ids=tuple(ids),
        missing=sum(sample.id not in known for sample in target.samples),
    )


def compare_layers_of(pair: RoutingPair, precision: Precision) -> Iterator[LayerRouting]:
    """Yield the comparison of each layer.

    Args:
        pair: Two routings with equally many layers and chosen experts.
        precision: The coarser precision of the two.
    """
    differs = pair.differs
    fresh = np.ones(len(differs), bool)
    for layer, name in enumerate(pair.target.layers):
        here = differs[:, layer]
        yield _layer(pair, layer, name, here, fresh, precision)
        fresh &= ~here


def _layer(pair: RoutingPair, layer: int, name: str, here: Array, fresh: Array, precision: Precision) -> LayerRouting:
    ours, theirs = pair.target.experts[:, layer], pair.golden.experts[:, layer]
    scores = _both(pair.target.scores, pair.golden.scores, layer)
    weights = _both(pair.target.weights, pair.golden.weights, layer)
    judged = fresh if int(fresh.sum()) >= _LEAST_TOKENS else np.ones_like(fresh)
    error, margin = None, None
    if scores is not None:
        error, noise = _differences(scores, judged)
        margin = _margin(scores[1], ours, theirs, here & judged, noise)
    floor = module_floor(precision, 1 + CALLS_PER_LAYER * (layer + 1)).size
    floor = min(floor, conventional().relative.of(precision) / LEAST_LIMITS[Measure.REL_L2])
    weight_error, factor = (None, None) if weights is None else _weights(weights, ours, theirs, fresh & ~here)
    if scores is None:
        error = weight_error
    follows = tuple(_follows(side, layer) for side in (pair.target, pair.golden))
    own = None if pair.target.scores is None else _choice(pair.target.scores[:, layer], ours.shape[1])
    own_differs = None
    if own is not None and (follows[1] is None or follows[1] >= _FOLLOWS):
        own_differs = np.sort(own, axis=1) != np.sort(theirs, axis=1)
        own_differs = own_differs.any(axis=1)
    return LayerRouting(
        layer=name, tokens=len(here), different=int(here.sum()), fresh=int(fresh.sum()),
        fresh_different=int((here & fresh).sum()), last_only=_one_exchanged(ours[here], theirs[here]),
        score_error=error, score_floor=floor, margin=margin, replay=_replay(here, own_differs),
        own_differs=None if own_differs is None else int(own_differs.sum()),
        follows=(follows[0], follows[1]), weight_error=weight_error, weight_factor=factor,
        first=_first(pair, layer, here),
    )  # fmt: skip


def _both(target: Array | None, golden: Array | None, layer: int) -> tuple[Array, Array] | None:
    if target is None or golden is None or target.shape != golden.shape:
        return None
    return target[:, layer].astype(np.float64), golden[:, layer].astype(np.float64)


def _differences(values: tuple[Array, Array], judged: Array) -> tuple[float, float]:
    """Return the median over tokens of the relative difference, and the median over tokens of its absolute size."""
    target, golden = (side[judged] for side in values)
    off = np.sqrt(((target - golden) ** 2).mean(axis=1))
    size = np.sqrt((golden**2).mean(axis=1))
    return _median(off / np.maximum(size, np.finfo(np.float64).tiny)), _median(off)


def _median(values: Array) -> float:
    return float(np.median(values)) if values.size else 0.0


def _margin(scores: Array, ours: Array, theirs: Array, here: Array, noise: float) -> float | None:
    """Return the largest lead of what golden alone chose over what the target alone chose, in units of the noise."""
    rows = np.flatnonzero(here)
    if not rows.size:
        return None
    only_theirs = ~(theirs[rows][:, :, None] == ours[rows][:, None, :]).any(axis=2)
    only_ours = ~(ours[rows][:, :, None] == theirs[rows][:, None, :]).any(axis=2)
    lead: Any = np.where(only_theirs, np.take_along_axis(scores[rows], theirs[rows], 1), -np.inf).max(axis=1)
    least: Any = np.where(only_ours, np.take_along_axis(scores[rows], ours[rows], 1), np.inf).min(axis=1)
    gap = float((lead - least).max())
    return gap / noise if noise else (0.0 if gap <= 0 else math.inf)


def _one_exchanged(ours: Array, theirs: Array) -> float:
    if not len(ours):
        return 0.0
    kept = (ours[:, :, None] == theirs[:, None, :]).any(axis=2).sum(axis=1)
    return float((kept == ours.shape[1] - 1).mean())


def _choice(scores: Array, number: int) -> Array:
    return np.argpartition(-scores, number - 1, axis=1)[:, :number] if number < scores.shape[1] else np.argsort(scores)


def _follows(side: RoutedTokens, layer: int) -> float | None:
    """Return for which share of tokens the chosen experts have the highest scores; equal scores count as such."""
    if side.scores is None or side.experts.shape[-1] >= side.scores.shape[-1] or not len(side.experts):
        return None
    scores: Any = side.scores[:, layer].astype(np.float64)
    experts: Any = side.experts[:, layer]
    least: Any = np.take_along_axis(scores, experts, 1).min(axis=1)
    others: Any = scores.copy()
    np.put_along_axis(others, experts, -np.inf, axis=1)
    # Softmax in float32 makes scores equal that are not quite.
    sizes: Any = np.abs(scores)
    allowed: Any = 4 * float(np.finfo(np.float32).eps) * np.maximum(sizes.max(axis=1), 1.0)
    follows: Any = np.less_equal(others.max(axis=1), least + allowed)
    return float(follows.mean())


def _replay(here: Array, own_differs: Array | None) -> Replay:
    if own_differs is None or not own_differs.any():
        return Replay.OFF if here.any() else Replay.UNKNOWN
    return Replay.APPLIED if not here[own_differs].any() else Replay.OFF


def _weights(
    weights: tuple[Array, Array], ours: Array, theirs: Array, same: Array
) -> tuple[float | None, float | None]:
    """Return the median relative difference of weights, and the factor between the two if there is one."""
    if not same.any():
        return None, None
    target, golden = (
        np.take_along_axis(side[same], np.argsort(experts[same], axis=1), 1)
        for side, experts in zip(weights, (ours, theirs), strict=True)
    )
    size = np.maximum(np.sqrt((golden**2).mean(axis=1)), np.finfo(np.float64).tiny)
    error = _median(np.sqrt(((target - golden) ** 2).mean(axis=1)) / size)
    factors = target.sum(axis=1) / np.maximum(golden.sum(axis=1), np.finfo(np.float64).tiny)
    factor = _median(factors)
    is_one = bool(np.abs(factors - factor).max(initial=0.0) <= 1e-3 * abs(factor))
    return error, factor if is_one else None


def _first(pair: RoutingPair, layer: int, here: Array) -> FirstDifference | None:
    rows = np.flatnonzero(here)
    if not rows.size:
        return None
    row = int(rows[np.lexsort((pair.sample[rows], pair.position[rows]))[0]])
    position, begin = int(pair.position[row]), int(pair.prompt_length[row])
    target, golden = (tuple(sorted(side.experts[row, layer].tolist())) for side in (pair.target, pair.golden))
    return FirstDifference(
        sample=pair.ids[int(pair.sample[row])], position=position,
        in_response=position - begin if position >= begin else None, target=target, golden=golden,
    )  # fmt: skip


# --- causes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Displacement:
    """Tokens or experts of the target are those of golden in another order.

    Attributes:
        order: What kind of order.
        by: By how many tokens they are shifted.
        before: Share of equal choices as they are.
        after: The same in golden's order.
        layer: Place of the layer whose experts are renumbered; ``None`` for all.
    """

    order: Order
    before: float
    after: float
    by: int = 0
    layer: int | None = None


def displaced(pair: RoutingPair) -> Displacement | None:
    """Return which other order makes routings agree that are unlike from the first layer on; ``None`` if none does."""
    differs = pair.differs
    if not len(differs) or not differs.shape[1]:
        return None
    worst = int((differs.mean(axis=0) > MANY).argmax())
    if differs[:, worst].mean() <= MANY:
        return None
    if worst == 0:
        found = _shifted(pair) or _shuffled(pair)
        if found is not None:
            return found
    before = 1 - float(differs[:, worst].mean())
    after = _renumbered(pair.target.experts[:, worst], pair.golden.experts[:, worst])
    if after < _EXPLAINS or after - before < MANY:
        return None
    return Displacement(order=Order.RENUMBERED, before=before, after=after, layer=worst)


def _keys(experts: Any) -> Any:
    """Return a number for each token's choices in its first layers; equal ones are equal with certainty in practice."""
    own: Any = np.sort(experts[:, :4], axis=-1)
    first: Any = own.reshape(len(own), -1).astype(np.uint64)
    factors = np.random.default_rng(0).integers(1, 2**63, first.shape[1], np.uint64) | np.uint64(1)
    with np.errstate(over="ignore"):
        return (first * factors).sum(axis=1, dtype=np.uint64)


def _shifted(pair: RoutingPair) -> Displacement | None:
    target, golden = (_keys(side.experts) for side in (pair.target, pair.golden))
    before = float((target == golden).mean())
    best = Displacement(order=Order.SHIFTED, before=before, after=0.0)
    for by in (d for d in range(-_MAX_SHIFT, _MAX_SHIFT + 1) if d):
        own, other = (slice(by, None), slice(None, -by)) if by > 0 else (slice(None, by), slice(-by, None))
        same = pair.sample[own] == pair.sample[other]
        if same.sum() >= _LEAST_TOKENS and (after := float((target[own] == golden[other])[same].mean())) > best.after:
            best = Displacement(order=Order.SHIFTED, before=before, after=after, by=by)
    return best if best.after >= _EXPLAINS and best.after - before > MANY else None


def _shuffled(pair: RoutingPair) -> Displacement | None:
    target, golden = (_keys(side.experts) for side in (pair.target, pair.golden))
    before = float((target == golden).mean())
    kinds, counts = np.unique(golden, return_counts=True)
    if len(kinds) < len(golden) / 2:
        return None  # too few kinds of tokens: equal choices would be chance
    own_kinds, own_counts = np.unique(target, return_counts=True)
    common, at, own_at = np.intersect1d(kinds, own_kinds, assume_unique=True, return_indices=True)
    after = float(np.minimum(counts[at], own_counts[own_at]).sum() / len(golden)) if common.size else 0.0
    is_so = after >= _EXPLAINS and after - before > MANY
    return Displacement(order=Order.SHUFFLED, before=before, after=after) if is_so else None


def _renumbered(ours: Any, theirs: Any) -> float:
    """Return the share of tokens that choose alike if each expert of golden is called as the target most often does."""
    count = int(max(ours.max(initial=0), theirs.max(initial=0))) + 1
    together = np.zeros((count, count), np.int64)
    for own in ours.T:
        for other in theirs.T:
            np.add.at(together, (other, own), 1)
    # Experts that are often chosen at all must not win by that.
    shares: Any = together / np.maximum(np.sqrt(np.outer(together.sum(axis=1), together.sum(axis=0))), 1)
    names = shares.argmax(axis=1)
    if len(np.unique(names[np.unique(theirs)])) < len(np.unique(theirs)):
        return 0.0
    return float((np.sort(names[theirs], axis=1) == np.sort(ours, axis=1)).all(axis=1).mean())


def dtype_of(side: RoutedTokens, layer: int = 0) -> str | None:
    """Return in which dtype a router computed its scores: the coarsest that holds all of them; ``None`` if unknown."""
    values = side.scores if side.scores is not None else None
    if values is None or not values.size:
        return None
    own: Any = np.ascontiguousarray(values[:, layer], np.float32)
    if not (own.view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        is_half = bool((own.astype(np.float16).astype(np.float32) == own).all())
    return "float16" if is_half else (side.scores_dtype or "float32")


def has_repeated(side: RoutedTokens) -> Array:
    """Return for each token and layer whether one expert is chosen twice, ``[tokens, layers]``."""
    own = np.sort(side.experts, axis=-1)
    return (own[..., 1:] == own[..., :-1]).any(axis=-1)
