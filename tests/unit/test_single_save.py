"""`SingleSave` and `SingleComparator`: the published layout and columns, and what the published ones hide."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from openpyxl import load_workbook

from msprobe_core.compat import single_save
from msprobe_core.compat.single_save import SingleComparator, SingleSave, similarity
from msprobe_core.errors import CompareError, ConfigError

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_saver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SingleSave, "_one", None)


def saver(path: Path, monkeypatch: pytest.MonkeyPatch) -> SingleSave:
    monkeypatch.setattr(SingleSave, "_one", None)
    return SingleSave(path)


def table(path: Path) -> list[dict[str, object]]:
    header, *rows = load_workbook(path).active.values
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_values_are_where_published_tools_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = saver(tmp_path, monkeypatch)
    assert SingleSave(tmp_path / "other") is one
    SingleSave.save({"reward": torch.tensor([1.0, -2.0])})
    SingleSave.save({"reward": torch.tensor([3.0])})
    SingleSave.step()
    one.save({"reward": (torch.ones(2, dtype=torch.bfloat16), {"kl": 0.5})})
    one.save_ex({"prompt": np.arange(3)}, micro_batch=7)
    one.save_ex({"prompt": np.arange(3)})
    one.save_config({"lr": 1e-6})
    root = tmp_path / "data"
    assert np.load(root / "reward/step0/rank0/micro_step0/reward.npy").tolist() == [1.0, -2.0]
    assert np.load(root / "reward/step0/rank0/micro_step1/reward.npy").tolist() == [3.0]
    assert np.load(root / "reward/step1/rank0/micro_step0/reward.0.npy").tolist() == [1.0, 1.0]
    assert np.load(root / "reward/step1/rank0/micro_step0/reward.1.kl.npy").tolist() == 0.5
    assert (root / "prompt/step1/rank0/micro_step7/prompt.npy").exists()
    assert (root / "prompt/step1/rank0/prompt.npy").exists()
    described = json.loads((root / "reward/step0/rank0/micro_step0/reward.json").read_text())
    assert described == {"data": {"max": 1.0, "min": -2.0, "mean": -0.5, "norm": math.sqrt(5), "shape": [2]}}
    assert json.loads((tmp_path / "configurations.json").read_text()) == {"lr": 1e-6}


@pytest.mark.parametrize("data", [[1], {"../x": 1.0}, {3.5: 1.0}, {"a/b": 1.0}, {"text": "words"}])
def test_what_cannot_be_saved_is_left_out(
    data: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saver(tmp_path / "out", monkeypatch).save(data)  # pyright: ignore[reportArgumentType]
    assert "left out" in caplog.text
    assert not list(tmp_path.rglob("*.npy"))


def test_a_saver_is_made_first() -> None:
    with pytest.raises(ConfigError, match="make one first"):
        SingleSave.save({"a": 1.0})


def test_two_trainings_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, shift in (("a", 0.0), ("b", 0.004)):
        one = saver(tmp_path / name, monkeypatch)
        one.save({"log_prob": torch.tensor([1.0, 2.0 + shift, math.nan]), "wide": torch.zeros(2, 3 + (name == "b"))})
        one.save({name: 1.0})
        one.step()
        one.save({"log_prob": torch.tensor([math.nan if name == "a" else 1.0, 5.0])})
    with caplog.at_level(logging.WARNING):
        SingleComparator.compare(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["log_prob.xlsx", "wide.xlsx"]
    first, second = table(tmp_path / "out" / "log_prob.xlsx")
    assert list(first) == list(single_save._COLUMNS)
    assert (first["step"], first["rank"], first["micro_step"], first["id"]) == (0, 0, 0, "log_prob")
    assert first["相同元素百分比(%)"] == pytest.approx(200 / 3)
    assert first["首个不匹配元素索引"] == 1
    assert first["最大相对误差"] == pytest.approx(0.004 / 2.004, rel=1e-4)
    assert first["误差在千分之一内元素占比(%)"] == pytest.approx(200 / 3)
    assert first["误差在百分之一内元素占比(%)"] == 100
    assert second["误差在百分之一内元素占比(%)"] == 50  # NaN of one side is not harmless
    assert str(second["最大相对误差"]) == "inf"
    wide = table(tmp_path / "out" / "wide.xlsx")[0]
    assert (wide["shape1"], wide["shape2"], wide["相同元素百分比(%)"]) == ("(2, 3)", "(2, 4)", 100)
    assert "the shapes are [2, 3] and [2, 4]" in caplog.text


def test_nothing_in_common_is_said(tmp_path: Path) -> None:
    (tmp_path / "a" / "data" / "x").mkdir(parents=True)
    (tmp_path / "b" / "data" / "y").mkdir(parents=True)
    with pytest.raises(CompareError, match="no key in common"):
        SingleComparator.compare(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    with pytest.raises(CompareError):
        SingleComparator.compare(tmp_path / "nowhere", tmp_path / "b", tmp_path / "out")


@given(arrays(np.float64, 6, elements=st.floats()), arrays(np.float64, 6, elements=st.floats()))
def test_similarity_is_symmetric_and_bounded(a: np.ndarray, b: np.ndarray) -> None:
    found = similarity(a, b)
    assert found == similarity(b, a)
    assert similarity(a, a).equal == 1
    assert 0 <= found.equal <= found.within_thousandth <= found.within_hundredth <= 1
    assert (found.first is None) == (found.equal == 1) == (found.max_abs == 0)


def test_scripts_find_the_published_names() -> None:
    from msprobe.core import SingleComparator as Comparator
    from msprobe.core import SingleSave as Save

    assert (Save, Comparator) == (SingleSave, SingleComparator)
