"""Digests of the random generators that every program has."""

from __future__ import annotations

import random
import sys
from typing import Any

from msprobe_core.manifest.facts import Generator
from msprobe_core.manifest.libraries import digest_of


def common_generators() -> list[Generator]:
    """Return those of Python and, if it is imported, of NumPy. Nothing is drawn from them."""
    found = [Generator(name="python", state=digest_of(repr(random.getstate()).encode()))]
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        kind, keys, *position = numpy.get_state()
        found.append(Generator(name="numpy", state=digest_of(f"{kind} {position} ".encode() + keys.tobytes())))
    return found
