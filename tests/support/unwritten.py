"""Which results of a function of MindSpore hold what was in their memory before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

_MARKS = (1.25e30, -7.5e29)
_SIZES = (1, 4, 100, 200, 300, 500, 1000, 3000, 10000, 100000)
_NUM_BLOCKS = 12


def unwritten(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> set[int]:
    """Return the numbers of the results that hold a mark which free memory was filled with, for two marks.

    Args:
        function: Is called twice.
        make: Returns its arguments.
    """
    return set.intersection(*[_marked(function, make, mark) for mark in _MARKS])


def _marked(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], mark: float) -> set[int]:
    fill_free_memory(mark)
    output = function(*make())
    results = output if isinstance(output, tuple) else (output,)
    word = np.float32(mark).tobytes()
    return {i for i, result in enumerate(results) if word in _words(result)}


def fill_free_memory(mark: float) -> None:
    """Fill blocks of many sizes with a number, and free them."""
    blocks = [ops.mul(Tensor(np.ones(size, np.float32)), mark) for size in _SIZES for _ in range(_NUM_BLOCKS)]
    for block in blocks:
        block.asnumpy()


def _words(result: Any) -> Iterator[bytes]:
    if isinstance(result, ms.Tensor):
        content = np.ascontiguousarray(result.asnumpy()).tobytes()
        yield from (content[i : i + 4] for i in range(0, len(content) - 3, 4))
