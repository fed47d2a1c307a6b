"""Digests of parameters on their way from the trainer to the serving engine, computed one by one as they pass."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msprobe_core.checkpoint.live import ModelSizes, other_dtypes, parts_of
from msprobe_core.model import Digest, TensorMeta
from msprobe_core.names import without_wrappers
from msprobe_core.protocols.framework import Framework
from msprobe_core.rl.files import Weight

_MAX_BYTES = 256 << 20
"""Digests are fetched from a device once parameters of this size are pending, since it keeps copies until then."""


@dataclass(frozen=True)
class _Taken:
    """Digests of one part, which are complete once they are collected."""

    key: str
    name: str
    meta: TensorMeta
    own: Digest
    casts: dict[str, Digest]
    turned: dict[str, Digest]


class WeightDigests:
    """Computes digests of parameters on their device, and keeps nothing else of them."""

    def __init__(
        self,
        framework: Framework,
        sizes: ModelSizes | None = None,
        placements: Mapping[str, str] | None = None,
        *,
        is_sender: bool = False,
    ) -> None:
        """Begin.

        Args:
            framework: Framework of the parameters.
            sizes: Sizes of the model, by which fused parameters are taken apart.
            placements: How parameters are sharded in the trainer, by canonical name.
            is_sender: Whether to take digests of what a receiver may make of a parameter: a cast, a transposed square.
        """
        self._framework = framework
        self._sizes = sizes or ModelSizes()
        self._placements = placements or {}
        self._is_sender = is_sender
        self._reducer = framework.reducer()
        self._caster = Caster()
        self._taken: list[_Taken] = []
        self._waiting = 0

    def take(self, name: str, tensor: Any) -> None:
        """Take a digest of one parameter's current value."""
        canonical = without_wrappers(name)
        for part in parts_of(canonical, tensor, self._framework.describe(tensor).shape, self._sizes):
            self._take(part.key, part.name, part.values)
        if not self._reducer.is_complete:
            self._waiting += int(getattr(tensor, "nbytes", 0))
            if self._waiting >= _MAX_BYTES:
                self._reducer.collect()
                self._waiting = 0

    def _take(self, key: str, name: str, tensor: Any) -> None:
        meta, own = self._framework.describe(tensor), Digest()
        self._reducer.statistics(tensor, own)
        self._reducer.hash(tensor, own)
        self._reducer.sketch(tensor, own)
        casts: dict[str, Digest] = {}
        turned: dict[str, Digest] = {}
        if self._is_sender and hasattr(tensor, "to"):  # a tensor of PyTorch
            dtype = _plain(meta)
            for other in other_dtypes(dtype):
                casts[other] = self._hash(self._caster.cast(tensor, other))
            if is_square(meta.shape):
                for other, values in turned_values(tensor, dtype, self._caster):
                    turned[other] = self._hash(values)
        self._taken.append(_Taken(key, name, meta, own, casts, turned))

    def _hash(self, tensor: Any) -> Digest:
        digest = Digest()
        self._reducer.hash(tensor, digest)
        return digest

    def finish(self) -> tuple[Weight, ...]:
        """Return the digests of all parameters, in the order of `take`."""
        self._reducer.collect()
        self._caster = Caster()  # without the memory of the former
        return tuple(self._weight(taken) for taken in self._taken)

    def _weight(self, taken: _Taken) -> Weight:
        stats = taken.own.stats
        return Weight(
            name=taken.name,
            key=taken.key,
            shape=taken.meta.shape,
            dtype=_plain(taken.meta),
            hash=taken.own.checksum or "",
            casts={dtype: digest.checksum for dtype, digest in taken.casts.items() if digest.checksum},
            turned={dtype: digest.checksum for dtype, digest in taken.turned.items() if digest.checksum},
            sketch=taken.own.sketch or b"",
            l2=_finite(stats and stats.l2_norm),
            mean=_finite(stats and stats.mean),
            min=_finite(stats and stats.min),
            max=_finite(stats and stats.max),
            placement=self._placements.get(taken.name),
        )


def _plain(meta: TensorMeta) -> str:
    return meta.dtype.rpartition(".")[2]


def is_square(shape: Sequence[int]) -> bool:
    """Whether a matrix has the shape that it has transposed; of others the shape shows whether they are."""
    return len(shape) == 2 and shape[0] == shape[1]


def turned_values(tensor: Any, dtype: str, caster: Caster) -> Generator[tuple[str, Any], None, None]:
    """Yield a transposed matrix in each dtype that it may be cast to, its own first.

    It is copied once, since a transposed copy takes several times as long as a cast of it, and a hash of what is not
    contiguous takes longer still.
    """
    values = tensor.detach().T.contiguous()
    yield dtype, values
    for other in other_dtypes(dtype):
        yield other, caster.cast(values, other)


class Caster:
    """Rounds tensors of PyTorch to other dtypes.

    On the host it does so in memory that it keeps: the first use of fresh pages takes several times as long as a cast.
    A result is valid until the next one of its dtype.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def cast(self, tensor: Any, dtype: str) -> Any:
        """Return a tensor, rounded to another dtype."""
        torch, values = sys.modules["torch"], tensor.detach()
        if type(values) is not torch.Tensor or values.device.type != "cpu":
            return values.to(getattr(torch, dtype))
        kept, count = self._kept.get(dtype), values.numel()
        if kept is None or kept.numel() < count:
            with torch.inference_mode(mode=False):
                kept = self._kept[dtype] = torch.empty(count, dtype=getattr(torch, dtype))
        return kept[:count].view(values.shape).copy_(values)


def sizes_of(models: Iterable[Any], shapes: Mapping[str, Sequence[int]] | None = None) -> ModelSizes:
    """Return the sizes in the configuration of a model that has one, or else those that its tensors' shapes show."""
    settings: dict[str, Any] = {}
    for model in models:
        config = getattr(model, "config", None)
        for own in (config, getattr(config, "text_config", None)):  # of a model for images and text
            for name in _SIZES:
                if (value := getattr(own, name, None)) is not None:
                    settings.setdefault(name, value)
    return ModelSizes.of_settings(settings).with_heads_of(shapes or {})


_SIZES = ("vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "n_head", "n_embd")


def tee(parameters: Iterable[Any], take: Callable[[str, Any], None]) -> Generator[Any, None, None]:
    """Yield parameters one by one, each after a call of ``take``, which must not raise."""
    for item in parameters:
        take(item[0], item[1])
        yield item


def placements_of(models: Iterable[Any]) -> dict[str, str]:
    """Return the placement of the models' sharded parameters, by canonical name; others are left out."""
    found: dict[str, str] = {}
    for model in models:
        named = getattr(model, "named_parameters", None)  # some chunks of a pipeline may not have it
        for name, parameter in () if named is None else named():
            placements = getattr(parameter, "placements", None)
            if placements is not None:
                found[without_wrappers(name)] = ", ".join(str(placement) for placement in placements)
    return found


def _finite(value: float | bool | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
