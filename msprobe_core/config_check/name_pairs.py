"""Which settings of two programs are one: equal names, known aliases, and names that are alike.

A flag that stands for a value is read as that value: ``bf16: True`` is the compute dtype ``bfloat16``, and
``fp32: True`` is the compute dtype ``float32``. So two flags of opposite meaning differ, though both are true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum

from msprobe_core.config_check.values import dtype_in
from msprobe_core.manifest.facts import Scalar

MIN_SIMILARITY = 0.8
"""Names must be more alike than this, as `difflib.SequenceMatcher.ratio` counts it. Source: `mindstudio-probe` 26.2."""

_ALIASES = {
    "learning_rate": ("lr", "learningrate"),
    "batch_size": ("batch", "bs", "batch_size_per_gpu"),
    "epochs": ("num_epochs", "max_epochs", "epoch"),
    "weight_decay": ("wd", "weightdecay"),
    "dropout_rate": ("dropout", "drop_rate"),
    "compute_dtype": ("bf16", "fp16", "fp32"),
    "residual_dtype": ("fp32_residual_connection",),
    "softmax_compute_dtype": ("attention_softmax_in_fp32",),
}
"""Source of the groups: `mindstudio-probe` 26.2, whose flags of opposite meaning match."""

_FLAGS = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp32_residual_connection": "float32",
    "attention_softmax_in_fp32": "float32",
}  # fmt: skip
"""Value that a flag stands for."""

_GROUP_OF = {alias: group for group, aliases in _ALIASES.items() for alias in (group, *aliases)}

_TELLING = frozenset({
    "min", "max", "train", "eval", "valid", "validation", "test", "val", "actor", "critic", "ref", "reference",
    "rollout", "in", "out", "input", "output", "start", "end", "first", "last", "no", "not", "non", "disable",
    "disabled", "without", "skip", "enable", "enabled", "with", "use", "k", "q", "v", "up", "down", "pre", "post",
    "src", "dst", "encoder", "decoder", "forward", "backward", "fwd", "bwd", "grad", "gradient", "weight", "bias",
    "mean", "std", "var", "tp", "pp", "dp", "cp", "ep", "key", "query", "value", "left", "right", "top", "bottom",
    "low", "high", "micro", "global", "mini", "local", "bf", "fp", "tf", "int", "uint", "float", "bfloat", "half",
    "double",
})  # fmt: skip
"""Words that make a name mean something else: two names in which they differ are two settings."""

_WORDS = re.compile(r"[a-z]+|\d+", re.ASCII)
_SEPARATORS = re.compile(r"[-_ ]+")
_MOST_FUZZY = 400
"""Maximum number of unmatched names on a side whose similarity is computed: the time grows with the square."""


class MatchKind(str, Enum):
    """How two names were matched; the values are those of `mindstudio-probe`'s column ``matched_with``."""

    EXACT = "exact"
    ALIAS = "mapping"
    SIMILAR = "similarity"


@dataclass(frozen=True, slots=True)
class NamePair:
    """A setting of both sides.

    Attributes:
        target: Its name on the target's side.
        golden: Its name on the golden side.
        kind: How they were matched.
        score: Similarity of the names, 0 to 1; 1 unless they are only alike.
        values: What the two mean, target first, where that is not what they say; ``None`` otherwise.
    """

    target: str
    golden: str
    kind: MatchKind = MatchKind.EXACT
    score: float = 1.0
    values: tuple[Scalar, Scalar] | None = None


@dataclass(frozen=True, slots=True)
class Pairing:
    """Settings of two sides by partner.

    Attributes:
        pairs: Those that both have, in the target's order.
        only_target: Names without partner.
        only_golden: See ``only_target``.
    """

    pairs: list[NamePair]
    only_target: list[str]
    only_golden: list[str]


def pair_names(target: Mapping[str, Scalar], golden: Mapping[str, Scalar], *, fuzzy: bool = True) -> Pairing:
    """Pair the settings of two sides by name.

    Args:
        target: Settings by name; names may be dotted paths.
        golden: See ``target``.
        fuzzy: Whether names that are alike may be a pair.
    """
    pairs = [NamePair(name, name) for name in target if name in golden]
    lone_target = [name for name in target if name not in golden]
    lone_golden = [name for name in golden if name not in target]
    pairs += _taken(_same_spelling(lone_target, lone_golden), lone_target, lone_golden)
    pairs += _taken(_aliases(lone_target, lone_golden, target, golden), lone_target, lone_golden)
    if fuzzy and max(len(lone_target), len(lone_golden)) <= _MOST_FUZZY:
        pairs += _taken(_similar(lone_target, lone_golden), lone_target, lone_golden)
    return Pairing(pairs, lone_target, lone_golden)


def _taken(found: Iterator[NamePair], target: list[str], golden: list[str]) -> Iterator[NamePair]:
    for pair in list(found):
        if pair.target in target and pair.golden in golden:
            target.remove(pair.target)
            golden.remove(pair.golden)
            yield pair


def _key(name: str) -> str:
    return _SEPARATORS.sub("_", name.strip("-").lower())


def _same_spelling(target: list[str], golden: list[str]) -> Iterator[NamePair]:
    by_key = {_key(name): name for name in golden}
    for name in target:
        if (other := by_key.get(_key(name))) is not None:
            yield NamePair(name, other, MatchKind.ALIAS)


def _aliases(
    target: list[str], golden: list[str], of_target: Mapping[str, Scalar], of_golden: Mapping[str, Scalar]
) -> Iterator[NamePair]:
    for name in target:
        for other in golden:
            scope, _, own = _key(name).rpartition(".")
            other_scope, _, other_own = _key(other).rpartition(".")
            group = _GROUP_OF.get(own)
            if group is None or group != _GROUP_OF.get(other_own) or scope != other_scope:
                continue
            meanings = _meaning(own, of_target[name]), _meaning(other_own, of_golden[other])
            if own in _FLAGS or other_own in _FLAGS:
                if None not in meanings:  # a flag that is off says nothing
                    yield NamePair(name, other, MatchKind.ALIAS, values=meanings)
            else:
                yield NamePair(name, other, MatchKind.ALIAS)


def _meaning(name: str, value: Scalar) -> Scalar:
    if name not in _FLAGS:
        return (dtype_in(value) or value) if isinstance(value, str) else value
    return _FLAGS[name] if str(value).lower() in ("true", "1", "yes", "on") else None


def _similar(target: list[str], golden: list[str]) -> Iterator[NamePair]:
    """Yield pairs of names that are alike, the most alike first."""
    scored: list[tuple[float, str, str]] = []
    for other in golden:
        matcher = SequenceMatcher(None, b=_key(other), autojunk=False)
        for name in target:
            matcher.set_seq1(_key(name))
            if matcher.real_quick_ratio() <= MIN_SIMILARITY or matcher.quick_ratio() <= MIN_SIMILARITY:
                continue
            score = matcher.ratio()
            if score > MIN_SIMILARITY and _may_be_one(_key(name), _key(other)):
                scored.append((score, name, other))
    for score, name, other in sorted(scored, key=lambda each: (-each[0], each[1], each[2])):
        yield NamePair(name, other, MatchKind.SIMILAR, score)


def _may_be_one(name: str, other: str) -> bool:
    """Whether two names do not differ in a number, or in a word that makes them two settings."""
    words, others = _WORDS.findall(name), _WORDS.findall(other)
    if [each for each in words if each.isdigit()] != [each for each in others if each.isdigit()]:
        return False
    return not ({*words} ^ {*others}) & _TELLING
