"""Settings that are used together."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from torch import Tensor, nn

from msprobe_core.config.watch import POLL_SECONDS
from msprobe_core.errors import ConfigError


def _configure(tmp_path: Path, name: str, **fields: Any) -> PrecisionDebugger:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"dump_path": str(tmp_path / name), **fields}))
    return PrecisionDebugger(path)


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*.pt"))


def _entries(directory: Path, step: int) -> dict[str, Any]:
    (dump,) = (directory / f"step{step}").glob("*/dump.json")
    return json.loads(dump.read_text())["data"]


def test_values_saved_at_level_debug_are_kept_whatever_bench_path_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, options in (("golden", {}), ("run", {"bench_path": str(tmp_path / "golden")})):
        debugger = _configure(tmp_path, name, task="tensor", level="debug", tensor={"summary_mode": "md5", **options})
        debugger.save(torch.ones(3), "x")
        debugger.step()
        debugger.close()
    assert _files(tmp_path / "run") == _files(tmp_path / "golden") == ["x.0.debug.pt"]
    assert "'bench_path' has no meaning at level debug" in caplog.text


def test_another_list_of_custom_apis_counts_when_the_file_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension: Any = ModuleType("some_extension")
    extension.first, extension.second = (lambda x: x * 2), (lambda x: x + 1)
    monkeypatch.setitem(sys.modules, "some_extension", extension)
    config = {"dump_path": str(tmp_path / "run"), "dump_enable": True}
    file = tmp_path / "config.json"
    for name in ("first", "second"):
        (tmp_path / name).write_text(f"some_extension: [{name}]\n")
    file.write_text(json.dumps({**config, "custom_apis": str(tmp_path / "first")}))
    debugger = PrecisionDebugger(file)
    for step in range(2):
        debugger.start()
        extension.second(extension.first(torch.ones(2)))
        debugger.stop()
        if step == 0:
            file.write_text(json.dumps({**config, "custom_apis": str(tmp_path / "second")}))
            os.utime(file, (1, 1))
            time.sleep(1.1 * POLL_SECONDS)
        debugger.step()
    debugger.close()
    own = [[name for name in _entries(tmp_path / "run", step) if "some_" in name] for step in range(2)]
    assert own == [["some_extension.first.0.forward"], ["some_extension.second.0.forward"]]


def test_inputs_are_loaded_into_the_forwards_that_token_range_counts(tmp_path: Path) -> None:
    earlier = {"path": str(tmp_path / "golden"), "modules": ["Module.0.Linear.forward.0"], "dump_after_load": True}
    seen: list[list[Tensor]] = []
    for name, fields in (("golden", {}), ("run", {"load": earlier})):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2))
        debugger = _configure(tmp_path, name, task="tensor", level="L0", **fields)
        debugger.start(model, token_range=[1, 1])
        factor = 1.0 if name == "golden" else 5.0
        seen.append([model(factor * torch.full((1, 2), float(i))) for i in range(1, 4)])
        debugger.close()
    golden, run = seen
    assert [torch.equal(a, b) for a, b in zip(golden, run, strict=True)] == [False, True, False]


@pytest.mark.parametrize("setting", ["load.path", "bench_path"])
def test_the_run_that_is_read_is_not_written_over(tmp_path: Path, setting: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with _configure(tmp_path, "run", task="tensor", level="L0").start(model) as debugger:
        model(torch.ones(1, 2))
    debugger.close()
    before = _files(tmp_path / "run")
    path = str(tmp_path / "run")
    load = {"path": path, "modules": ["Module.0.Linear.forward.0"], "dump_after_load": True}
    other = {"load": load} if setting == "load.path" else {"tensor": {"bench_path": path, "summary_mode": "md5"}}
    with pytest.raises(ConfigError, match=f"'{setting}' and 'dump_path' are both"):
        _configure(tmp_path, "run", task="tensor", level="L0", **other)
    assert before
    assert _files(tmp_path / "run") == before


def test_step_goes_on_recording_after_steps_that_are_not_selected(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = _configure(tmp_path, "run", level="L0", step=[1, 3])
    debugger.start(model)
    for _ in range(5):
        model(torch.ones(1, 2))
        debugger.step()
    debugger.close()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["step1", "step3"]
