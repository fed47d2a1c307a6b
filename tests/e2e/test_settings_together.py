"""Settings that are used together."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn


def _configure(tmp_path: Path, name: str, **fields: Any) -> PrecisionDebugger:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"dump_path": str(tmp_path / name), **fields}))
    return PrecisionDebugger(path)


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*.pt"))


def test_values_saved_at_level_debug_are_kept_whatever_bench_path_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, options in (("golden", {}), ("run", {"bench_path": str(tmp_path / "golden")})):
        debugger = _configure(
            tmp_path, name, task="tensor", level="debug", tensor={"summary_mode": "md5", **options}
        )
        debugger.save(torch.ones(3), "x")
        debugger.step()
        debugger.close()
    assert _files(tmp_path / "run") == _files(tmp_path / "golden") == ["x.0.debug.pt"]
    assert "'bench_path' has no meaning at level debug" in caplog.text
