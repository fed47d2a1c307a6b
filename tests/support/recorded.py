"""Look into a dump that a test has just recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_core.store.tensors import read_tensor


class Recorded:
    """The one dump under ``step{step}`` of a run, or that of a rank."""

    def __init__(self, run: Path, step: int = 0, rank: int | None = None) -> None:
        (self.directory,) = (run / f"step{step}").glob("*" if rank is None else f"rank{rank}")
        content = self.json("dump.json")
        self.header = {key: value for key, value in content.items() if key != "data"}
        self.data: dict[str, Any] = content["data"]

    def json(self, name: str) -> Any:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{name}: {constant} is not JSON")

        return json.loads((self.directory / name).read_text(), parse_constant=refuse)

    def tensor(self, value: dict[str, Any]) -> np.ndarray:
        return read_tensor(self.directory / "dump_tensor_data" / value["data_name"])

    def starting(self, start: str) -> list[str]:
        return [entry for entry in self.data if entry.startswith(start)]


def leaves(tree: Any, path: str = "") -> dict[str, dict[str, Any]]:
    """Return the leaves of a value tree by dotted path; places without a value are left out."""
    if isinstance(tree, dict) and isinstance(tree.get("type"), str):
        return {path: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found: dict[str, dict[str, Any]] = {}
    for key, value in items:
        found |= leaves(value, f"{path}.{key}" if path else str(key))
    return found
