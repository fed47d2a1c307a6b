"""``msprobe rl compare routing``: experts that rollout and trainer chose, and whether they are replayed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from msprobe_core.errors import CompareError, StoreError
from msprobe_core.findings import Code, each_once
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.limits import Precision
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.detail_codes import ComparedCode, LineCode, RunNoteCode
from msprobe_core.rl.files import Array, BatchFile, RLStage
from msprobe_core.rl.floors import precision_named
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.outcome import Finding, Outcome, listed_steps, table_of
from msprobe_core.rl.recorded import Progress, RecordedRun, chosen_steps, in_turn
from msprobe_core.rl.routing import (
    Displacement,
    LayerRouting,
    Order,
    Replay,
    RoutingPair,
    compare_layers_of,
    displaced,
    dtype_of,
    has_repeated,
    paired,
)
from msprobe_core.rl.routing_codes import RoutingCode
from msprobe_core.rl.routing_files import RoutedTokens, Routing, load_routings, packed

_MODES = (
    "actor_rollout_ref.actor.megatron.router_replay.mode", "actor_rollout_ref.actor.veomni.router_replay.mode",
    "actor_rollout_ref.actor.router_replay.mode", "router_replay.mode",
)  # fmt: skip
"""Settings that say what is replayed. Of verl 0.9: ``R2`` replays the pass that computed the log-probs in the update,
``R3`` the rollout in both."""
_SWITCH = "actor_rollout_ref.rollout.enable_rollout_routing_replay"
_UNRELATED = 0.5
"""Share of tokens with other experts in a layer, all earlier ones alike, that is a fault where no scores tell."""
_SAME_WEIGHTS = 1e-3
_BINS = (0, 16, 64, 256, 1024)
"""Beginnings of the parts of a response for which shares are given."""


@dataclass(frozen=True, kw_only=True)
class RoutingOptions:
    """What to compare.

    Attributes:
        steps: Steps to compare; all if empty.
        target: Stage under test; ``None`` for all stages of the trainer that were recorded.
        golden: Stage that it is compared with; ``None`` for the one whose choices it should have.
        replay: ``R2``, ``R3`` or ``disabled``; ``None`` for what the configuration says.
    """

    steps: Collection[int] = ()
    target: str | None = None
    golden: str | None = None
    replay: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Compared:
    step: int
    target: str
    golden: str
    mode: str | None
    """The mode that replays golden's choices in the target; ``None`` if none does."""
    pair: RoutingPair
    layers: Sequence[LayerRouting]
    displacement: Displacement | None

    @property
    def share(self) -> float:
        """Share of tokens with other experts in some layer."""
        return float(self.pair.differs.any(axis=1).mean()) if self.pair.is_alike and len(self.pair.differs) else 0.0

    @property
    def num_replayed(self) -> int:
        """Number of layers whose choices are golden's, and not those of their own scores."""
        return sum(layer.replay is Replay.APPLIED for layer in self.layers)

    def said(self, code: Code, **fields: Any) -> Said:
        return Said.of(code, target=self.target, golden=self.golden, **fields)


def compare_routing(
    run: RecordedRun, options: RoutingOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare the choices of experts that a run recorded.

    Raises:
        CompareError: no routings were recorded, or of one stage only.
        DumpError: a file cannot be read.
    """
    options = options or RoutingOptions()
    mode = _mode(run) if options.replay is None else options.replay
    available = sorted({*run.steps(RLStage.ROUTING.value), *run.steps(RLStage.TRAINER.value)})
    chosen = chosen_steps(available, options.steps, f"{RLStage.ROUTING.value} of {run.path}")
    compared: list[_Compared] = []
    notes: list[Said] = []
    for step in in_turn(chosen, progress):
        stages = _stages(run, step, mode)
        for target, golden in _pairs(stages, options, mode):
            found = _compare(step, target, golden, stages, _mode_of(target, golden, mode))
            if found.pair.missing:
                notes.append(found.said(RunNoteCode.NO_ROUTINGS, step=step, count=found.pair.missing))
            compared.append(found)
    if not compared:
        raise CompareError(
            f"{run.path}: holds no routings of two stages of one step; record them with RunWriter.routing, for example "
            "what msprobe.pytorch.RoutingRecorder takes from a model with experts"
        )
    return _outcome(run, compared, mode, each_once(notes))


def _mode(run: RecordedRun) -> str | None:
    found = next((str(mode) for name in _MODES if (mode := run.setting(name)) is not None), None)
    return "R3" if found is None and run.setting(_SWITCH) else found


def _mode_of(target: str, golden: str, mode: str | None) -> str | None:
    """Return the mode if it replays choices of golden in the target."""
    update, log_prob, rollout = RLStage.ACTOR_UPDATE.value, RLStage.ACTOR_LOG_PROB.value, RLStage.ROLLOUT.value
    replayed = {"R2": [(update, log_prob)], "R3": [(log_prob, rollout), (update, rollout), (update, log_prob)]}
    return mode if mode is not None and (target, golden) in replayed.get(mode, ()) else None


def _stages(run: RecordedRun, step: int, mode: str | None) -> dict[str, Routing]:
    """Return all routings of a step; the rollout's may be recorded under an earlier step, or be in the batch."""
    found = load_routings(run.path, step)
    rollout = RLStage.ROLLOUT.value
    if rollout not in found and found:
        earlier = [each for each in run.steps(RLStage.ROUTING.value) if each < step]
        for each in reversed(earlier):
            if rollout in (before := load_routings(run.path, each)):
                found[rollout] = before[rollout]
                break
    owner = RLStage.ACTOR_LOG_PROB.value if mode == "R2" else rollout
    if owner not in found and step in run.steps(RLStage.TRAINER.value):
        tensors = run.batch(step)[1]
        names = ("routed_experts", "prompts", "responses", "attention_mask")
        experts, *tokens = (tensors.get(name) for name in names)
        if experts is not None and all(each is not None for each in tokens):
            try:
                found[owner] = packed(RoutedTokens(experts=experts), *(np.asarray(each) for each in tokens))
            except StoreError as error:
                raise CompareError(f"{run.path}: step {step}: routed_experts: {error}") from error
    return found


def rerouted_tokens(run: RecordedRun, step: int, batch: BatchFile, shape: tuple[int, ...]) -> Array | None:
    """Return for each row and position of the responses whether the token before it has other experts in the trainer.

    Args:
        run: The run.
        step: The trainer's step.
        batch: Its batch.
        shape: Of the responses.

    Returns: ``None`` if routings of rollout and trainer were not recorded, or are of other shapes.

    Raises:
        DumpError: a file cannot be read.
    """
    if step not in run.steps(RLStage.ROUTING.value):
        return None
    stages = _stages(run, step, _mode(run))
    target, golden = stages.get(RLStage.ACTOR_LOG_PROB.value), stages.get(RLStage.ROLLOUT.value)
    if target is None or golden is None or len(shape) != 2:
        return None
    pair = paired(target, golden)
    if not pair.is_alike:
        return None
    rows = {row.id: number for number, row in enumerate(batch.samples)}
    row = np.array([rows.get(name, -1) for name in pair.ids], np.int64)[pair.sample]
    column = pair.position - pair.prompt_length + 1
    is_in = (row >= 0) & (column >= 0) & (column < shape[1]) & pair.differs.any(axis=1)
    found = np.zeros(shape, bool)
    found[row[is_in], column[is_in]] = True
    return found


def _pairs(stages: Mapping[str, Routing], options: RoutingOptions, mode: str | None) -> Iterator[tuple[str, str]]:
    update, log_prob, rollout = RLStage.ACTOR_UPDATE.value, RLStage.ACTOR_LOG_PROB.value, RLStage.ROLLOUT.value
    if options.target is not None or options.golden is not None:
        target, golden = options.target or log_prob, options.golden or rollout
        if target in stages and golden in stages:
            yield target, golden
        return
    if {log_prob, rollout} <= stages.keys():
        yield log_prob, rollout
    before = rollout if rollout in stages and (mode == "R3" or log_prob not in stages) else log_prob
    if {update, before} <= stages.keys():
        yield update, before


def _compare(step: int, target: str, golden: str, stages: Mapping[str, Routing], mode: str | None) -> _Compared:
    pair = paired(stages[target], stages[golden])
    if not len(pair.position):
        raise CompareError(f"step {step}: {target} and {golden} have no sample in common, so nothing can be compared")
    layers = list(compare_layers_of(pair, _precision(pair))) if pair.is_alike else []
    return _Compared(
        step=step, target=target, golden=golden, mode=mode, pair=pair, layers=layers,
        displacement=displaced(pair) if pair.is_alike else None,
    )  # fmt: skip


def _precision(pair: RoutingPair) -> Precision:
    return max(precision_named(side.dtype or "float32") for side in (pair.target, pair.golden))


def _findings(one: _Compared) -> list[Finding]:
    """Return the findings of one pair, the cause first."""
    wrong = list(_of_shapes(one)) or list(_of_order(one)) or list(_of_replay(one)) or list(_of_choices(one))
    return [Finding(verdict=verdict, said=said, step=one.step, place=place) for verdict, place, said in wrong]


_Found = Iterator[tuple[Verdict, str, Said]]


def _of_shapes(one: _Compared) -> _Found:
    target, golden = one.pair.target.experts, one.pair.golden.experts
    if target.shape[1] != golden.shape[1]:
        yield Verdict.ERROR, "layers", one.said(RoutingCode.LAYERS, own=target.shape[1], other=golden.shape[1])
    elif target.shape[2] != golden.shape[2]:
        yield Verdict.ERROR, "top_k", one.said(RoutingCode.TOP_K, own=target.shape[2], other=golden.shape[2])
    for stage, side in ((one.target, one.pair.target), (one.golden, one.pair.golden)):
        repeated = has_repeated(side)
        if repeated.any():
            layer = side.layers[int(repeated.any(axis=0).argmax())]
            fields = {"stage": stage, "count": int(repeated.any(axis=1).sum()), "layer": layer}
            yield Verdict.ERROR, layer, one.said(RoutingCode.REPEATED, **fields)


def _of_order(one: _Compared) -> _Found:
    moved = one.displacement
    if moved is None:
        return
    fields = {"before": 100 * moved.before, "after": 100 * moved.after}
    if moved.order is Order.RENUMBERED:
        layer = one.layers[moved.layer or 0].layer
        yield Verdict.ERROR, layer, one.said(RoutingCode.RENUMBERED, layer=layer, **fields)
    elif moved.order is Order.SHIFTED:
        yield Verdict.ERROR, "tokens", one.said(RoutingCode.SHIFTED, by=moved.by, **fields)
    else:
        yield Verdict.ERROR, "tokens", one.said(RoutingCode.SHUFFLED, **fields)


def _of_replay(one: _Compared) -> _Found:
    """Where choices are replayed, each other choice is one too many, whatever the scores are."""
    off = [layer for layer in one.layers if layer.replay is Replay.OFF]
    if one.mode is None or not off:
        return
    fields = {"mode": one.mode, "share": 100 * one.share, "first": _first(one, off[0])}
    if len(off) == len(one.layers):
        yield Verdict.ERROR, off[0].layer, one.said(RoutingCode.REPLAY_OFF, count=len(off), **fields)
    else:
        names = [layer.layer for layer in off]
        said = one.said(RoutingCode.REPLAY_LAYERS, layers=names, total=len(one.layers), count=len(off), **fields)
        yield Verdict.ERROR, names[0], said


def _of_choices(one: _Compared) -> _Found:
    otherwise = next((layer for layer in one.layers if layer.chooses_otherwise and layer.different), None)
    beyond = next((layer for layer in one.layers if layer.is_beyond_ties), None)
    if otherwise is not None and one.mode is None:
        share = 100 * (1 - (otherwise.follows[0] or 0.0))
        fields = {"layer": otherwise.layer, "share": share, "first": _first(one, otherwise)}
        yield Verdict.ERROR, otherwise.layer, one.said(RoutingCode.SELECTION, **fields)
    place = beyond or one.layers[0]
    own, other = (dtype_of(side, one.layers.index(place)) for side in (one.pair.target, one.pair.golden))
    if own is not None and other is not None and own != other:
        verdict = Verdict.ERROR if beyond is not None else Verdict.WARNING
        yield verdict, place.layer, one.said(RoutingCode.DTYPE, layer=place.layer, own=own, other=other)
    if beyond is not None and otherwise is None:
        yield Verdict.ERROR, beyond.layer, _beyond(one, beyond)
    yield from _of_weights(one)
    different = next((layer for layer in one.layers if layer.different), None)
    if different is None or beyond is not None or otherwise is not None:
        return
    fields = {"share": 100 * one.share, "layer": different.layer, "first": _first(one, different)}
    if different.score_error is not None:
        yield Verdict.WARNING, different.layer, one.said(RoutingCode.TIES, **fields)
        return
    worst = max(one.layers, key=lambda layer: layer.fresh_different / max(layer.fresh, 1))
    of_layer = worst.fresh_different / max(worst.fresh, 1)
    if of_layer > _UNRELATED:
        said = one.said(RoutingCode.UNRELATED, layer=worst.layer, share=100 * of_layer, first=_first(one, worst))
        yield Verdict.ERROR, worst.layer, said
    else:
        yield Verdict.WARNING, different.layer, one.said(RoutingCode.UNEXPLAINED, **fields)


def _beyond(one: _Compared, layer: LayerRouting) -> Said:
    fields = {"layer": layer.layer, "count": layer.fresh_different, "first": _first(one, layer)}
    if layer.score is not None and layer.score > 1:
        return one.said(RoutingCode.SCORES, error=layer.score_error, score=layer.score, **fields)
    return one.said(RoutingCode.MARGIN, margin=layer.margin, **fields)


def _of_weights(one: _Compared) -> _Found:
    for layer in one.layers:
        error, factor = layer.weight_error, layer.weight_factor
        # Weights of experts with scores of their own are judged; otherwise they are all that is known of the scores.
        if error is None or one.pair.target.scores is None or one.pair.golden.scores is None or layer.is_beyond_ties:
            continue
        if error <= max(_SAME_WEIGHTS, 10 * layer.score_floor):
            continue
        if factor is not None and abs(factor - 1) > _SAME_WEIGHTS:
            said = one.said(RoutingCode.WEIGHTS_FACTOR, layer=layer.layer, factor=factor)
        else:
            said = one.said(RoutingCode.WEIGHTS, layer=layer.layer, error=error)
        yield Verdict.ERROR, layer.layer, said
        return


def _first(one: _Compared, layer: LayerRouting) -> Sequence[Said]:
    """Return where a layer differs first, as a list, which is empty if it does not."""
    if layer.first is None:
        return []
    first = layer.first
    fields = {
        "layer": layer.layer, "position": first.position, "sample": first.sample[:12],
        "own": [str(each) for each in first.target], "other": [str(each) for each in first.golden],
    }  # fmt: skip
    return [one.said(RoutingCode.FIRST, **fields)]


# --- outcome -------------------------------------------------------------------------------------------------------


def _outcome(run: RecordedRun, compared: Sequence[_Compared], mode: str | None, notes: Sequence[Said]) -> Outcome:
    findings = sorted((f for one in compared for f in _findings(one)), key=lambda f: not f.is_fault)
    fault = next((finding for finding in findings if finding.is_fault), None)
    share = max(one.share for one in compared)
    steps = sorted({one.step for one in compared})
    return Outcome(
        command="routing",
        paths=[run.path],
        compared=Said(
            ComparedCode.ROUTING,
            fields={
                "tokens": sum(len(one.pair.position) for one in compared),
                "layers": max(one.pair.target.experts.shape[1] for one in compared), "steps": listed_steps(steps),
                "mode": mode or "not configured",
            },
        ),
        said=(
            Said.of(HeadlineCode.IN_STEP, step=fault.step, what=fault.said) if fault is not None
            else Said(HeadlineCode.EXPERTS_EQUAL) if not share
            else Said.of(HeadlineCode.EXPERTS_AGREE, share=100 * share)
        ),
        findings=findings,
        notes=[*notes, *_replay_notes(compared)],
        lines=[line for one in compared for line in _lines(one)],
        numbers={"mode": mode, "pairs": [_numbers(one) for one in compared]},
        tables={"layers": _table(compared), "positions": _positions(compared)},
    )  # fmt: skip


def _replay_notes(compared: Sequence[_Compared]) -> Iterator[Said]:
    for one in compared:
        if one.mode is None or not one.layers or any(layer.replay is Replay.OFF for layer in one.layers):
            continue
        if not one.num_replayed:
            yield one.said(RunNoteCode.REPLAY_UNKNOWN, step=one.step)


def _lines(one: _Compared) -> Iterator[Said]:
    yield one.said(LineCode.ROUTING, step=one.step, share=100 * one.share)
    if not one.layers:
        return
    worst = max(one.layers, key=lambda layer: layer.share)
    replayed = [Said.of(LineCode.REPLAYED, count=one.num_replayed)] if one.num_replayed else []
    yield Said.of(LineCode.MOST_ROUTED, layer=worst.layer, share=100 * worst.share, replayed=replayed)


def _numbers(one: _Compared) -> dict[str, Any]:
    layers = [
        {**asdict(layer), "replay": layer.replay.value, "share": layer.share, "score": layer.score}
        for layer in one.layers
    ]
    return {"step": one.step, "target": one.target, "golden": one.golden, "share": one.share, "layers": layers}


@dataclass(frozen=True)
class _LayerRow:
    step: int
    target: str
    golden: str
    layer: str
    tokens: int
    different: int
    share: float
    fresh_different: int
    one_exchanged: float
    score_error: float | None
    score: float | None
    margin: float | None
    weight_error: float | None
    replay: str
    sample: str | None
    position: int | None
    verdict: Verdict


def _table(compared: Sequence[_Compared]) -> pl.DataFrame:
    rows: list[_LayerRow] = []
    for one in compared:
        named = {finding.place for finding in _findings(one) if finding.is_fault}
        for layer in one.layers:
            is_wrong = layer.layer in named or layer.is_beyond_ties or (one.mode and layer.replay is Replay.OFF)
            verdict = Verdict.ERROR if is_wrong else Verdict.WARNING if layer.different else Verdict.PASS
            first = layer.first
            rows.append(
                _LayerRow(
                    one.step, one.target, one.golden, layer.layer, layer.tokens, layer.different, layer.share,
                    layer.fresh_different, layer.last_only, layer.score_error, layer.score, layer.margin,
                    layer.weight_error, layer.replay.value, None if first is None else first.sample,
                    None if first is None else first.position, verdict,
                )
            )  # fmt: skip
    return table_of(_LayerRow, rows)


@dataclass(frozen=True)
class _PositionRow:
    step: int
    target: str
    golden: str
    positions: str
    tokens: int
    different: int
    share: float
    verdict: Verdict = Verdict.PASS


def _positions(compared: Sequence[_Compared]) -> pl.DataFrame:
    """Return shares of tokens with other experts in some layer, by their position."""
    rows: list[_PositionRow] = []
    for one in (each for each in compared if each.pair.is_alike):
        different: Any = one.pair.differs.any(axis=1)
        place = one.pair.position - one.pair.prompt_length
        parts = [("prompt", place < 0)]
        for begin, end in zip(_BINS, (*_BINS[1:], None), strict=True):
            name = f"response {begin}-" if end is None else f"response {begin}-{end - 1}"
            parts.append((name, (place >= begin) & (True if end is None else place < end)))
        for name, mask in parts:
            if total := int(mask.sum()):
                other = int(different[mask].sum())
                rows.append(_PositionRow(one.step, one.target, one.golden, name, total, other, other / total))
    return table_of(_PositionRow, rows)
