"""Parameters that one framework names otherwise than another, by the plugins' maps of names: ``gamma`` is ``weight``.

The maps are those by which dumps of two frameworks are compared; see `msprobe_core.protocols.trainers.ApiMap`.
A checkpoint does not say which classes its modules have, so what a map says of single classes is tried for all; and few
formats say which framework wrote them, so tensors without a partner must tell it by their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from msprobe_core.checkpoint.canonical import key_of
from msprobe_core.plugins import registry
from msprobe_core.protocols.trainers import ApiMap

Named = tuple[str, tuple[int, ...]]
"""Stored name and shape of a tensor."""

T = TypeVar("T")


@dataclass(frozen=True)
class Translation:
    """How the keys of one side are translated.

    Attributes:
        keys: The other side's keys by own keys.
        excused: Keys that only the other side has, of buffers that this side's framework does not have.
    """

    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    excused: frozenset[str] = frozenset()

    def renamed(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """Return tensors by translated key."""
        return {self.keys.get(key, key): tensor for key, tensor in tensors.items()}


def translations_between(target: Mapping[str, Named], golden: Mapping[str, Named]) -> tuple[Translation, Translation]:
    """Return how the keys of the target are translated to those of the golden side, and the reverse.

    Nothing is translated but tensors without a partner, to one without a partner that has their shape. All lone names
    of the other side must be without the framework's words: two checkpoints of one framework translate nothing.

    Args:
        target: Name and shape of the target's tensors by key.
        golden: The same of the golden ones.
    """
    own = {key: named for key, named in target.items() if key not in golden}
    other = {key: named for key, named in golden.items() if key not in target}
    if not own or not other:
        return Translation(), Translation()
    maps = [each for each in registry().api_maps().values() if each.parameters.get("")]
    forward = next(filter(_is_used, (_translation(own, other, words) for words in maps)), Translation())
    if forward.keys:
        return forward, Translation()
    return forward, next(filter(_is_used, (_translation(other, own, words) for words in maps)), Translation())


def _is_used(translation: Translation) -> bool:
    return bool(translation.keys)


def _translation(own: Mapping[str, Named], other: Mapping[str, Named], words: ApiMap) -> Translation:
    usual = words.parameters[""]
    if any(_last(name) in usual for name, _ in other.values()) or all(
        _last(name) not in usual for name, _ in own.values()
    ):
        return Translation()
    found: dict[str, list[str]] = {}
    for key, (name, shape) in own.items():
        for translated in _translated(name, words):
            if other.get(translated, ("", None))[1] == shape:
                found.setdefault(translated, []).append(key)
    unique = [(sources[0], key) for key, sources in found.items() if len(sources) == 1]
    times = Counter(source for source, _ in unique)
    keys = {source: key for source, key in unique if times[source] == 1}
    modules = {key.rpartition(".")[0] for key in keys.values()}
    unknown = set(words.buffers) - {word for each in words.parameters.values() for word in each.values()}
    excused = (key for key in other if key.rpartition(".")[0] in modules and _last(key) in unknown)
    return Translation(keys, frozenset(excused))


def _translated(name: str, words: ApiMap) -> Iterable[str]:
    """Return the keys that a tensor may have in PyTorch's words."""
    path, dot, last = name.rpartition(".")
    canonical = (each[last] for each in words.parameters.values() if last in each)
    return dict.fromkeys(key_of(f"{path}{dot}{word}") for word in canonical)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
