"""Fingerprints of a model's weights at each hop of each transfer, from any trainer and any engine.

On the way from the trainer to the engine, each process logs what it has::

    log = WeightLog("runs/a/weights", Hop.SENT, rank=rank, model=model)
    log.sync(n)
    for name, tensor in parameters:
        log.add(name, tensor)
    log.close()

`msprobe_core.rl.weight_chain` compares the hops. Only fingerprints are kept, which are computed on the tensors' device.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, cast

import numpy as np

from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.checkpoint.canonical import Heads, key_of
from msprobe_core.checkpoint.contents import Kind
from msprobe_core.checkpoint.fingerprints import SUFFIX, CheckpointPrint, TensorPrint, write_fingerprint
from msprobe_core.checkpoint.live import ModelSizes, other_dtypes, parts_of
from msprobe_core.errors import ConfigError, PluginError
from msprobe_core.fingerprint.place import Place
from msprobe_core.model import Digest, TensorMeta
from msprobe_core.names import without_wrappers
from msprobe_core.protocols.capabilities import ShardReducer
from msprobe_core.rl.weight_digests import Caster, is_square, sizes_of, turned_values
from msprobe_core.store.layout import make_directory


class Hop(str, Enum):
    """Places that weights pass, in this order."""

    DISK = "disk"
    EXPORTED = "exported"
    SHARD = "shard"
    GATHERED = "gathered"
    SENT = "sent"
    RECEIVED = "received"
    LOADED = "loaded"
    AWAKE = "awake"

    @classmethod
    def named(cls, name: str) -> Hop:
        """Return the hop of a name, which may be a published one.

        Raises:
            ConfigError: there is no such hop.
        """
        try:
            return cls(_PUBLISHED.get(name, name))
        except ValueError:
            known = ", ".join([*(hop.value for hop in cls), *_PUBLISHED])
            raise ConfigError(f"there is no place {name!r} of weights; known are {known}") from None


_PUBLISHED = {"P0": "disk", "P2": "exported", "P2_sender": "sent", "P5": "received", "after_sleep": "awake"}
"""Names in published guides."""

CHAINS = ((Hop.DISK, Hop.EXPORTED), (Hop.SHARD, Hop.GATHERED, Hop.SENT, Hop.RECEIVED, Hop.LOADED, Hop.AWAKE))
"""Hops that are compared with the one before. What was exported when the trainer began is not what it sends later."""


@dataclass(frozen=True)
class Parallel:
    """How an engine shares a model among its processes.

    Attributes:
        tensor_rank: Number of this process among those with tensor parallelism.
        tensor_size: Number of those.
        first_expert: Number of the first expert that this process holds, if experts are numbered in each process.
    """

    tensor_rank: int = 0
    tensor_size: int = 1
    first_expert: int = 0


_ROWS = re.compile(r"(^|\.)(q|k|v|qkv|gate|up|gate_up|embed|head)\.(weight|bias)$")
_COLUMNS = re.compile(r"(^|\.)(o|down)\.weight$")
_EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")
_RESOLUTION_BITS = 12
"""Of the 24 bits of a number of a sketch, so many are not kept: the sketch itself is less precise."""


@dataclass
class _Pending:
    found: TensorPrint
    meta: TensorMeta
    own: Digest = field(default_factory=Digest)
    casts: dict[str, Digest] = field(default_factory=dict[str, Digest])
    turned: dict[str, Digest] = field(default_factory=dict[str, Digest])

    def done(self) -> TensorPrint:
        """Return the fingerprint, once all digests are there."""
        import msgspec

        stats, count = self.own.stats, math.prod(size for _, size in self.found.part) or math.prod(self.found.shape)
        values = {
            "squares": math.nan if stats is None or stats.l2_norm is None else float(stats.l2_norm) ** 2,
            "total": math.nan if stats is None or stats.mean is None else float(stats.mean) * count,
            "low": math.nan if stats is None or stats.min is None else float(stats.min),
            "high": math.nan if stats is None or stats.max is None else float(stats.max),
        }
        return msgspec.structs.replace(
            self.found, **values, hash=_number(self.own), sketch=_coarse(self.own.sketch or self.found.sketch),
            casts={dtype: _number(digest) for dtype, digest in self.casts.items()},
            turned={dtype: _number(digest) for dtype, digest in self.turned.items()},
        )  # fmt: skip


def _number(digest: Digest) -> int:
    return int(digest.checksum or "0", 16)


def _coarse(sketch: bytes) -> bytes:
    """Return a sketch rounded to 12 bits, which compresses to half of its size."""
    bits: Any = np.frombuffer(sketch, "<u4")
    half = np.uint32(1 << (_RESOLUTION_BITS - 1))
    is_finite = (bits & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    with np.errstate(over="ignore"):
        rounded = (bits + half * is_finite) & np.uint32(0xFFFFFFFF << _RESOLUTION_BITS & 0xFFFFFFFF)
    return rounded.astype("<u4").tobytes()


class WeightLog:
    """Writes fingerprints of the weights that one process has at one hop: a file for each transfer."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        place: Hop | str,
        *,
        rank: int = 0,
        model: Any = None,
        parallel: Parallel | None = None,
        framework: str = "pytorch",
    ) -> None:
        """Begin.

        Args:
            path: Directory of all logs of the job.
            place: The hop, or its published name, such as ``P2_sender``.
            rank: Number of the process at this hop.
            model: The model, whose ``config`` says how fused parameters are taken apart.
            parallel: How an engine shares the model, if it does.
            framework: The framework of the weights.

        Raises:
            ConfigError: there is no such hop.
            PluginError: the framework's plugin is missing, or cannot take digests of shards.
        """
        self._framework = find_framework(framework, None)
        self._path = Path(path)
        self._hop = place if isinstance(place, Hop) else Hop.named(place)
        self._rank = rank
        self._parallel = parallel or Parallel()
        self._sizes = sizes_of([] if model is None else [model])
        self._reducer = self._framework.reducer()
        self._caster = Caster()
        if self._parallel.tensor_size > 1 and not isinstance(self._reducer, ShardReducer):
            raise PluginError(f"the plugin of {framework} takes no digests of shards; log whole tensors")
        self._sync: int | None = None
        self._pending: list[_Pending] = []

    def sync(self, number: int) -> None:
        """Begin a transfer, and write the one before."""
        self.close()
        self._sync = number

    def add(self, name: str, tensor: Any) -> None:
        """Take the fingerprint of one parameter's current value.

        Raises:
            ConfigError: no transfer has begun.
        """
        if self._sync is None:
            raise ConfigError(f"{name} was added before a transfer began; call WeightLog.sync(number) first")
        meta = self._framework.describe(tensor)
        distribution = meta.distribution
        if distribution is not None and distribution.local_offset is not None:
            part = tuple(zip(distribution.local_offset, distribution.local_shape, strict=True))
            self._take(key_of(without_wrappers(name)), name, tensor, meta, part)
            return
        for piece in parts_of(without_wrappers(name), tensor, meta.shape, self._own_sizes()):
            of_piece = self._framework.describe(piece.values)
            key = _EXPERT.sub(lambda found: str(int(found[0]) + self._parallel.first_expert), piece.key)
            shape, part = self._whole(key, of_piece.shape)
            if any(size <= 0 for _, size in part):  # padding beyond the vocabulary
                continue
            values = piece.values if not part else piece.values[: part[0][1]]
            self._take(key, piece.name, values, _with_shape(of_piece, shape), part)

    def _own_sizes(self) -> ModelSizes:
        heads, size = self._sizes.heads, self._parallel.tensor_size
        if heads is None or size == 1:
            return self._sizes
        own = Heads(heads.num_heads // size, max(1, heads.num_groups // size), heads.head_dim)
        return replace(self._sizes, heads=own, vocabulary=None)

    def _whole(self, key: str, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """Return the shape of the whole tensor, and the part that this process has; nothing if it has all of it."""
        size, rank = self._parallel.tensor_size, self._parallel.tensor_rank
        dim = 0 if _ROWS.search(key) else 1 if _COLUMNS.search(key) and len(shape) > 1 else None
        if size == 1 or dim is None or not shape:
            return tuple(shape), ()
        length, begin, own = shape[dim] * size, shape[dim] * rank, shape[dim]
        if self._sizes.heads is not None and re.search(r"\.(k|v)\.(weight|bias)$", key):  # may have several copies
            length = self._sizes.heads.num_groups * self._sizes.heads.head_dim
            begin = rank * self._sizes.heads.num_groups // size * self._sizes.heads.head_dim
        elif self._sizes.vocabulary is not None and re.search(r"(^|\.)(embed|head)\.", key):
            length = min(length, self._sizes.vocabulary)
            own = min(own, length - begin)
        whole = (*shape[:dim], length, *shape[dim + 1 :])
        return whole, tuple((begin, own) if d == dim else (0, n) for d, n in enumerate(shape))

    def _take(self, key: str, name: str, tensor: Any, meta: TensorMeta, part: tuple[tuple[int, int], ...]) -> None:
        dtype = meta.dtype.rpartition(".")[2]
        found = TensorPrint(key=key, name=name, kind=Kind.WEIGHT, shape=meta.shape, dtype=dtype, part=part)
        pending = _Pending(found, meta)
        place = Place.of_shard(meta.shape, [begin for begin, _ in part]) if part else None
        self._reducer.statistics(tensor, pending.own)
        self._digest(tensor, pending.own, place, has_sketch=True)
        if hasattr(tensor, "to"):  # a tensor of PyTorch
            for other in other_dtypes(dtype):
                self._digest(self._caster.cast(tensor, other), pending.casts.setdefault(other, Digest()), place)
            if not part and is_square(meta.shape) and self._hop is Hop.SENT:
                for other, values in turned_values(tensor, dtype, self._caster):
                    self._digest(values, pending.turned.setdefault(other, Digest()), None)
        self._pending.append(pending)

    def _digest(self, tensor: Any, digest: Digest, place: Place | None, *, has_sketch: bool = False) -> None:
        if place is None or _is_distributed(tensor):
            self._reducer.hash(tensor, digest)
            if has_sketch:
                self._reducer.sketch(tensor, digest)
            return
        reducer = cast("ShardReducer", self._reducer)
        reducer.hash_at(tensor, digest, place)
        if has_sketch:
            reducer.sketch_at(tensor, digest, place)

    def close(self) -> None:
        """Write the transfer that has begun.

        Raises:
            StoreError: the file cannot be written.
        """
        if self._sync is None:
            return
        self._reducer.collect()
        self._caster = Caster()  # without the memory of the former
        prints: Mapping[str, TensorPrint] = {str(i): pending.done() for i, pending in enumerate(self._pending)}
        path = file_of(self._path, self._sync, self._hop, self._rank)
        make_directory(path.parent, below=self._path)
        write_fingerprint(CheckpointPrint(path=path, prints=prints, step=self._sync), path, is_live=True)
        self._pending, self._sync = [], None


def log_checkpoint(path: Path, checkpoint: Path, sync: int) -> None:
    """Log a checkpoint on disk, as the hop `Hop.DISK` of a transfer.

    Args:
        path: Directory of all logs of the job.
        checkpoint: The checkpoint, in any format.
        sync: Number of the transfer.

    Raises:
        DumpError: it cannot be read.
        StoreError: the file cannot be written.
    """
    from msprobe_core.checkpoint.fingerprints import fingerprint_checkpoint
    from msprobe_core.checkpoint.opening import open_checkpoint

    file = file_of(path, sync, Hop.DISK, 0)
    make_directory(file.parent, below=path)
    write_fingerprint(fingerprint_checkpoint(open_checkpoint(checkpoint)), file)


def _with_shape(meta: TensorMeta, shape: tuple[int, ...]) -> TensorMeta:
    """Return a description of the whole tensor."""
    import msgspec

    return msgspec.structs.replace(meta, shape=shape)


def _is_distributed(tensor: Any) -> bool:
    """Whether a tensor knows which part of a larger one it is."""
    return hasattr(tensor, "placements")


def file_of(path: Path, sync: int, hop: Hop, rank: int) -> Path:
    """Return the path of one log."""
    return path / f"sync{sync}" / hop.value / f"rank{rank}{SUFFIX}"
