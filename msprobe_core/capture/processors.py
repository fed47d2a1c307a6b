"""The core's own processors: the digests that can be recorded of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import Digest
from msprobe_core.protocols.capabilities import Fp8Reducer
from msprobe_core.protocols.framework import Reducer
from msprobe_core.protocols.storage import Processor


class NoDigests:
    """Read no tensor: what takes the copies computes the statistics of those that it keeps."""

    name = "statistics"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Leave the digest empty."""


class StatisticsProcessor:
    """Keep maximum, minimum, mean, norm and the counts of NaN and Inf."""

    name = "statistics"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.stats``."""
        reducer.statistics(tensor, digest)


class ChecksumProcessor:
    """Keep statistics and a CRC-32 of the bytes; users know it as ``md5``."""

    name = "md5"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.stats`` and ``digest.checksum``."""
        reducer.statistics(tensor, digest)
        reducer.checksum(tensor, digest)


class XorProcessor:
    """Keep the exclusive or of all words, without statistics: the cheapest way to detect a difference."""

    name = "xor"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.checksum``."""
        reducer.xor(tensor, digest)


class HashProcessor:
    """Keep a hash of bits and positions, without statistics; computed on the device, and additive over shards."""

    name = "hash"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.checksum``."""
        reducer.hash(tensor, digest)


class SketchProcessor:
    """Keep statistics and a sketch of 64 numbers that estimates the distance of two tensors."""

    name = "sketch"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.stats`` and ``digest.sketch``."""
        reducer.statistics(tensor, digest)
        reducer.sketch(tensor, digest)


class Fp8Processor:
    """Keep statistics and the loss of quantisation to FP8; the session refuses it without an `Fp8Reducer`."""

    name = "fp8"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.stats`` and ``digest.fp8``."""
        reducer.statistics(tensor, digest)
        cast("Fp8Reducer", reducer).fp8(tensor, digest)


@hookimpl
def msprobe_register_processors() -> Sequence[Processor]:
    """Offer the processors of this module."""
    return [
        StatisticsProcessor(), ChecksumProcessor(), XorProcessor(), HashProcessor(), SketchProcessor(), Fp8Processor(),
    ]  # fmt: skip
