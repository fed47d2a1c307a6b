"""The core's own processors: what is kept of each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msprobe_core.guard import plugin_call
from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import Digest
from msprobe_core.protocols.capabilities import Fp8Reducer
from msprobe_core.protocols.framework import Reducer
from msprobe_core.protocols.storage import Processor


class GuardedProcessor:
    """A plugin's processor, whose failures name it."""

    def __init__(self, processor: Processor, who: str) -> None:
        """Guard a processor.

        Args:
            processor: The plugin's.
            who: What it is called in messages.
        """
        self.name = processor.name
        self._reduce = processor.reduce
        self._who = who

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Have the plugin fill in the digest."""
        with plugin_call(self._who, "reducing a tensor"):
            self._reduce(tensor, digest, reducer)


class StatisticsProcessor:
    """Keep maximum, minimum, mean, norm and the counts of NaN and Inf."""

    name = "statistics"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.stats``."""
        reducer.statistics(tensor, digest)


class ChecksumProcessor:
    """Keep a CRC-32 of the bytes beside the statistics; ``md5`` is what users call it."""

    name = "md5"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.stats`` and ``digest.checksum``."""
        reducer.statistics(tensor, digest)
        reducer.checksum(tensor, digest)


class XorProcessor:
    """Keep the exclusive or of the words, and no statistics: the cheapest way to see that something differs."""

    name = "xor"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.checksum``."""
        reducer.xor(tensor, digest)


class HashProcessor:
    """Keep a hash of bits and positions, and no statistics; devices compute it, and shards add up to it."""

    name = "hash"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.checksum``."""
        reducer.hash(tensor, digest)


class SketchProcessor:
    """Keep 64 numbers beside the statistics, from which the distance of two tensors can be estimated."""

    name = "sketch"

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest.stats`` and ``digest.sketch``."""
        reducer.statistics(tensor, digest)
        reducer.sketch(tensor, digest)


class Fp8Processor:
    """Keep what quantisation to FP8 would lose beside the statistics; the session refuses it without `Fp8Reducer`."""

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
