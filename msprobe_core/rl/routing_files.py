"""Files of recorded routings: which experts were chosen for each token, in each layer of one stage.

They are in ``routing/step*/rank*/``: ``{stage}-{number}.json`` with ``{stage}-{number}.safetensors`` for each part that
was recorded, such as a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from msprobe_core.errors import DamagedDumpError, DumpError, StoreError
from msprobe_core.rl.files import VERSION, Array, RLStage, load_tensors, rank_directory, ranks_of, save_tensors
from msprobe_core.store import load_struct, make_directory, sample_id, save_struct

_EXPERTS, _WEIGHTS, _SCORES = "experts", "weights", "scores"


class RoutingRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sample.

    Attributes:
        id: As in `Row`.
        prompt_length: Number of tokens of its prompt.
        length: Number of tokens whose routing was recorded: the first ones of the sample.
    """

    id: str
    prompt_length: int
    length: int


class RoutingFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of the tensors, whose first dimension is the tokens of all samples, one after the other.

    Attributes:
        version: Version of the format.
        step: The trainer's step.
        stage: Which model chose.
        layers: Names of the layers with experts, in their order.
        dtype: In which the layers compute; ``None`` if unknown.
        scores_dtype: In which the routers compute; ``None`` if unknown.
        samples: In the tensors' order.
    """

    version: int
    step: int
    stage: str
    layers: tuple[str, ...]
    dtype: str | None = None
    scores_dtype: str | None = None
    samples: tuple[RoutingRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RoutedTokens:
    """Which experts were chosen for tokens.

    Attributes:
        experts: Numbers of the chosen experts, ``[tokens, layers, chosen]``, or ``[rows, positions, layers, chosen]``
            where `RunWriter.routing` gets them.
        weights: Weights of their results, of the same shape; ``None`` if they were not recorded.
        scores: The router's logits for all experts, ``[…, layers, experts]``; ``None`` if they were not recorded.
        layers: Names of the layers; empty to number them.
        dtype: In which the layers compute, without the framework's prefix; ``None`` if unknown.
        scores_dtype: In which the routers compute; ``None`` if unknown.
    """

    experts: Array
    weights: Array | None = None
    scores: Array | None = None
    layers: tuple[str, ...] = ()
    dtype: str | None = None
    scores_dtype: str | None = None

    @property
    def parts(self) -> dict[str, Array]:
        """What is there, by name."""
        own = {_EXPERTS: self.experts, _WEIGHTS: self.weights, _SCORES: self.scores}
        return {name: array for name, array in own.items() if array is not None}

    def where(self, places: Array) -> RoutedTokens:
        """Return the tokens at places."""
        parts = {name: array[places] for name, array in self.parts.items()}
        return replace(self, **parts)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Routings of one stage of one step.

    Attributes:
        tokens: Of all samples, ``[tokens, …]``.
        samples: The samples, in the order of the tokens.
    """

    tokens: RoutedTokens
    samples: tuple[RoutingRow, ...]

    @property
    def begins(self) -> list[int]:
        """Place of the first token of each sample."""
        return [0, *np.cumsum([sample.length for sample in self.samples]).tolist()][:-1]


def packed(given: RoutedTokens, prompts: Array, responses: Array, attention_mask: Array) -> Routing:
    """Return routings without padding.

    Args:
        given: Of padded rows, ``[rows, positions, layers, chosen]``, where an engine may have left out the last
            positions; or of the tokens that `attention_mask` shows, one after the other.
        prompts: Token ids ``[rows, positions]``, padded on the left.
        responses: Token ids ``[rows, positions]``, padded on the right.
        attention_mask: Over both; 0 where there is padding.

    Raises:
        StoreError: shapes contradict each other.
    """
    ids, shown = np.concatenate([prompts, responses], axis=1), attention_mask != 0
    if shown.shape != ids.shape:
        raise StoreError(f"the attention_mask is {list(shown.shape)}; prompts and responses are {list(ids.shape)}")
    experts = given.experts
    for name, array in given.parts.items():
        if array.shape[:-1] != experts.shape[:-1] or experts.ndim not in {3, 4} or experts.dtype.kind not in "iu":
            raise StoreError(
                f"'{name}' of a routing is {list(array.shape)} of {array.dtype}; give experts as whole numbers "
                f"[rows, positions, layers, chosen] or [tokens, layers, chosen], here {list(experts.shape)}, and the "
                "others alike"
            )
    if experts.ndim == 3:
        if len(experts) != shown.sum():
            raise StoreError(f"there are routings of {len(experts)} tokens; attention_mask shows {int(shown.sum())}")
        places, lengths = np.arange(len(experts)), shown.sum(axis=1)
        flat = given
    else:
        if len(experts) != len(ids) or experts.shape[1] > ids.shape[1]:
            raise StoreError(
                f"the experts are {list(experts.shape)}; at most {ids.shape[1]} positions of {len(ids)} rows are known"
            )
        kept = shown[:, : experts.shape[1]]
        kept = kept & ~_unrecorded_end(experts, kept)
        places, lengths = np.flatnonzero(kept), kept.sum(axis=1)
        parts: dict[str, Any] = dict(given.parts)
        flat = replace(given, **{name: a.reshape(-1, *a.shape[2:]) for name, a in parts.items()})
    layers = given.layers or tuple(f"layer {number}" for number in range(experts.shape[-2]))
    if len(layers) != experts.shape[-2]:
        raise StoreError(f"{len(layers)} layers have names, and {experts.shape[-2]} have experts")
    width = prompts.shape[1]
    samples = tuple(
        RoutingRow(id=sample_id(row[mask]), prompt_length=int(mask[:width].sum()), length=int(length))
        for row, mask, length in zip(ids, shown, lengths, strict=True)
    )
    return Routing(tokens=replace(flat.where(places), layers=layers), samples=samples)


def _unrecorded_end(experts: Array, kept: Array) -> Array:
    """Return where the last token of a row has only zeros: engines do not feed it, and fill it up with them."""
    found = np.zeros_like(kept)
    if experts.shape[-1] < 2 or not kept.shape[1]:
        return found
    last = kept.shape[1] - 1 - kept[:, ::-1].argmax(axis=1)
    rows = np.arange(len(kept))
    found[rows, last] = kept.any(axis=1) & (experts[rows, last] == 0).all(axis=(-2, -1))
    return found


def save_routing(run: Path, stage: str, step: int, routing: Routing, *, rank: int = 0, number: int = 0) -> None:
    """Write one part of a stage's routings.

    Raises:
        StoreError: it cannot be written.
    """
    directory = rank_directory(run, RLStage.ROUTING.value, step, rank)
    make_directory(directory, below=run)
    tokens, path = routing.tokens, directory / f"{stage}-{number}.safetensors"
    arrays = {name: np.asarray(a, np.float32 if name != _EXPERTS else np.int32) for name, a in tokens.parts.items()}
    save_tensors(path, arrays)
    file = RoutingFile(
        version=VERSION, step=step, stage=stage, layers=tokens.layers, dtype=tokens.dtype,
        scores_dtype=tokens.scores_dtype, samples=routing.samples,
    )  # fmt: skip
    save_struct(path.with_suffix(".json"), file)


def load_routings(run: Path, step: int) -> dict[str, Routing]:
    """Return the routings of a step by stage, those of all ranks and parts together.

    Raises:
        DumpError: a file cannot be read, or ranks contradict each other.
    """
    found: dict[str, list[Routing]] = {}
    for directory in ranks_of(run, RLStage.ROUTING.value, step).values():
        for stage, part in _parts_in(directory):
            found.setdefault(stage, []).append(part)
    try:
        return {stage: joined(parts) for stage, parts in found.items()}
    except ValueError as error:
        raise DumpError(f"{run}: step {step}: the routings of its ranks have different shapes ({error})") from error


def _parts_in(directory: Path) -> Iterator[tuple[str, Routing]]:
    for path in sorted(directory.glob("*.json")):
        file, tensors = load_struct(path, RoutingFile), load_tensors(path.with_suffix(".safetensors"))
        experts = tensors.get(_EXPERTS)
        total = sum(sample.length for sample in file.samples)
        if (
            experts is None
            or experts.ndim != 3
            or experts.shape[:2] != (total, len(file.layers))
            or any(a.ndim != 3 or a.shape[:2] != experts.shape[:2] for a in tensors.values())
            or any(sample.length < 0 for sample in file.samples)
            or (_WEIGHTS in tensors and tensors[_WEIGHTS].shape != experts.shape)
        ):
            raise DamagedDumpError(f"{path}: describes other routings than those beside it; record again")
        tokens = RoutedTokens(
            experts=experts, weights=tensors.get(_WEIGHTS), scores=tensors.get(_SCORES), layers=file.layers,
            dtype=file.dtype, scores_dtype=file.scores_dtype,
        )  # fmt: skip
        yield file.stage, Routing(tokens=tokens, samples=file.samples)


def joined(parts: list[Routing]) -> Routing:
    """Return several routings of the same layers as one; weights or scores that one of them lacks are left out.

    Raises:
        ValueError: their shapes differ.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0].tokens
    if any(part.tokens.layers != first.layers for part in parts):
        raise ValueError("other layers")
    names = [name for name in first.parts if all(name in part.tokens.parts for part in parts)]
    arrays = {name: np.concatenate([part.tokens.parts[name] for part in parts]) for name in names}
    missing = dict.fromkeys({_WEIGHTS, _SCORES} - arrays.keys())
    return Routing(tokens=replace(first, **missing, **arrays), samples=tuple(s for part in parts for s in part.samples))
