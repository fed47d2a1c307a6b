"""Tensors whose parts several ranks have stored, merged while they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from msprobe_core.compare.shards.assembly import Array, Assembly
from msprobe_core.compare.shards.rank_rows import Union
from msprobe_core.compare.shards.sources import CHUNK, Assembled, Reader, overlap
from msprobe_core.errors import DumpError
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.tensor_source import chunk_ranges


class _Recipe(NamedTuple):
    """How a value is put together, and the value whose files are read for it."""

    assembly: Assembly
    source: int


class MergedFiles:
    """Names tensors whose parts are all stored, and opens them.

    Args:
        union: The rows of all parts.
    """

    def __init__(self, union: Union) -> None:
        self._union = union
        self._values: dict[str, int] = {}
        self._recipes: dict[int, _Recipe] = {}

    def add(self, values: Array, assembly: Assembly, source: int | None = None) -> dict[int, str]:
        """Return a file name for each of the values whose parts are all stored.

        Args:
            values: Numbers of values, int64 ``[n]``.
            assembly: How they are put together.
            source: The value whose files are read; by default each value's own.
        """
        at = values if source is None else np.array([source])
        filled = [piece for piece in assembly.pieces if piece.numel] or list(assembly.pieces[:1])
        names = [self._union.cells("file_name", piece.part, at) for piece in filled]
        tokens: dict[int, str] = {}
        for i, value in enumerate(values.tolist()):
            own = [part[i] for part in names]
            if None not in own:
                rank = self._union.parts[filled[0].part].rank
                token = f"rank{rank}/{own[0]}" + (f" and {len(own) - 1} more" if len(own) > 1 else "")
                while self._values.setdefault(token, value) != value:
                    token += "'"
                tokens[value] = token
                self._recipes[value] = _Recipe(assembly, int(at[0]) if source is not None else value)
        return tokens

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a tensor by the name that it was given.

        Raises:
            DumpError: there is none, or a part of it cannot be read.
        """
        value = self._values.get(file_name)
        if value is None:
            raise DumpError(f"{file_name}: is no tensor of these dumps")
        assembly, source = self._recipes[value]
        open_part = self._opener(source)
        first = open_part(assembly.pieces[0].part)
        return first if assembly.is_one_part else Assembled(assembly, open_part, first.dtype)

    def _opener(self, value: int) -> Callable[[int], TensorSource]:
        def open_part(number: int) -> TensorSource:
            part = self._union.parts[number]
            return part.dump.open_tensor(part.frame["file_name"][int(self._union.index[value, number])])

        return open_part

    def errors_by_part(self, value: int, golden: TensorSource) -> Sequence[float]:
        """Return the relative error of each part of a value in the Euclidean norm.

        Empty if the value is not stored, is a sum, or has another shape than ``golden``.

        Raises:
            DumpError: a part or ``golden`` cannot be read.
        """
        recipe = self._recipes.get(value)
        if recipe is None or recipe.assembly.reduction is not None or golden.shape != recipe.assembly.shape:
            return []
        pieces = recipe.assembly.pieces
        own, other = (
            Reader(source, CHUNK)
            for source in (Assembled(recipe.assembly, self._opener(recipe.source), golden.dtype), golden)
        )
        sums: Array = np.zeros((len(pieces), 2))
        for begin, sizes in chunk_ranges(golden.shape, CHUNK):
            target, trusted = (np.asarray(reader.take(sizes), np.complex128) for reader in (own, other))
            for number, piece in enumerate(pieces):
                for block in piece.blocks:
                    inside = overlap(begin, sizes, block)
                    if inside is not None:
                        sums[number] += [_square(target[inside] - trusted[inside]), _square(trusted[inside])]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(sums[:, 0] == 0, 0.0, np.sqrt(sums[:, 0] / sums[:, 1])).tolist()


def _square(values: Array) -> float:
    return float((np.abs(values) ** 2).sum())
