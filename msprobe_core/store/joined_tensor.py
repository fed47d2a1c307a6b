"""A tensor whose bytes are in several places of a file, one after the other in C order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import LargeDumpError
from msprobe_core.store.tensor_source import StoredTensor

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class JoinedTensor:
    """A tensor in several parts; see `msprobe_core.plugin.TensorSource`.

    Attributes:
        name: Name in messages.
        parts: Vectors of its elements, in C order.
        shape: Shape of the whole, with as many elements as the parts.
        dtype: Dtype of all parts.
    """

    name: Path
    parts: Sequence[StoredTensor]
    shape: tuple[int, ...]
    dtype: str

    def chunks(self, num_elements: int) -> Iterator[Array]:
        """Yield the elements in C order, as vectors of at most ``num_elements``.

        Raises:
            DumpError: as `StoredTensor.chunks`.
        """
        for part in self.parts:
            yield from part.chunks(num_elements)

    def read(self) -> Array:
        """Return the whole tensor.

        Raises:
            DumpError: as `chunks`, or it does not fit into memory.
        """
        try:
            return np.reshape(np.concatenate([part.read() for part in self.parts]), self.shape)
        except MemoryError as error:
            raise LargeDumpError(f"{self.name}: does not fit into memory") from error
