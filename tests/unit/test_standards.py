"""The published standards: the file has the published numbers, the page is made from it, and the code takes it."""

import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from standards_page import PAGES, chinese, english, page, power_text

from msprobe_core.api_check import standards as module
from msprobe_core.api_check.published import published_columns
from msprobe_core.api_check.standards import Algorithm, load_standards, standards
from msprobe_core.compat import ratio_compare
from msprobe_core.errors import ConfigError
from msprobe_core.findings import Language
from msprobe_core.model import ReplayTensor

FILE = Path(module.__file__).with_suffix(".yaml")


@pytest.mark.parametrize("language", Language)
def test_the_page_is_that_of_the_file(language):
    assert PAGES[language].read_text(encoding="utf-8") == page(language), "run make standards"


def test_each_text_of_the_file_has_a_translation_and_no_other_has():
    assert english() == {*chinese()}


def cells_below(heading):
    """Return the first table below a heading of the page, by first cell."""
    section = PAGES[Language.ENGLISH].read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in ([c.strip() for c in line.strip("|").split("|")] for line in lines[2:])}


def as_number(cell):
    power = re.fullmatch(r"2\^(-?\d+)", cell)
    return 2.0 ** int(power[1]) if power else float(cell)


def test_constants_on_the_page_are_the_published_ones():
    found = {name: [as_number(cell) for cell in cells] for name, cells in cells_below("Constants by dtype").items()}
    # golden_eps, small_value, absolute_atol, benchmark_atol, rtol, accumulative bound and balance, minimum_error
    assert found == {
        "float16": [2**-23, 2**-10, 2**-16, 1e-16, 2**-10, 2**-8, 2**-20, 2**-11],
        "bfloat16": [2**-8, 2**-10, 1e-16, 1e-16, 2**-8, 2**-7, 2**-7, 2**-8],
        "float32": [2**-52, 2**-20, 2**-30, 2**-30, 2**-20, 2**-11, 2**-14, 2**-14],
        "other": [2**-52, 2**-20, 2**-30, 2**-30, 2**-20, 2**-11, 2**-14, 2**-14],
    }
    for name, cells in found.items():
        assert list(msgspec.structs.astuple(standards().dtypes[name])) == cells


def test_limits_on_the_page_are_the_published_ones():
    classes = {name: [float(cell) for cell in cells[:3]] for name, cells in cells_below("Limits of ratios").items()}
    assert classes == {"L0": [10, 2, 2], "L1": [5, 1.5, 1.5], "L2": [2, 1.2, 1.2]}
    single = {name: as_number(cells[0]) for name, cells in cells_below("Single benchmark").items()}
    assert single == {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-13, "hfloat32": 2**-11,
                      "float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2}  # fmt: skip
    ulp = cells_below("Errors in units in the last place")
    assert {name: cells[2:] for name, cells in ulp.items()} == {
        "float16": ["1", "", "0.001", "1"], "bfloat16": ["1", "", "0.001", "1"], "float32": ["32", "64", "0.05", "1"],
        "float8_e4m3fn": ["1", "", "0.001", ""], "float8_e5m2": ["1", "", "0.001", ""],
    }  # fmt: skip


def test_formats_are_those_of_numpy():
    for name, kind in (("float16", np.float16), ("float32", np.float32)):
        form, info = standards().ulp_formats[name], np.finfo(kind)
        assert (form.min_exponent, form.mantissa_bits) == (info.minexp, info.nmant)
    assert standards().constants("float32").golden_eps == np.finfo(np.float64).eps
    assert standards().constants("float16").golden_eps == np.finfo(np.float32).eps


def test_the_choice_of_a_standard():
    choose = standards().algorithm
    assert choose("float8_e4m3fn") is Algorithm.ULP
    assert choose("float32", frozenset({"float32", "float8_e5m2"})) is Algorithm.ABSOLUTE_THRESHOLD
    assert [choose(name) for name in ("float16", "bfloat16", "float32", "float64")] == [Algorithm.BENCHMARK] * 4
    assert [choose(name) for name in ("int64", "bool", "complex64")] == [Algorithm.BINARY] * 3


def test_classes_of_apis():
    names = {api: standards().class_of(api)[0] for api in ("sin", "embedding", "mm", "GELU", "gelu", "__matmul__")}
    assert names == {"sin": "L0", "embedding": "L1", "mm": "L2", "GELU": "L2", "gelu": "L0", "__matmul__": "L0"}
    listed = [api for own in standards().classes.values() for api in own.apis]
    assert len(listed) == len(set(listed))


def test_the_code_takes_the_numbers_of_the_file(monkeypatch):
    golden = np.linspace(1, 2, 64)
    recorded = ReplayTensor(values=(golden * (1 + 1e-3)).astype(np.float32), dtype="float32")

    def measured():
        return published_columns(recorded, golden, own=golden.astype(np.float32), api="Torch.sin.0")

    before = measured()
    loose = msgspec.structs.replace(
        standards(),
        dtypes={"other": msgspec.structs.replace(standards().dtypes["other"], rtol=0.1, minimum_error=1.0)},
        single_benchmark=msgspec.structs.replace(standards().single_benchmark, thresholds={"float32": 0.1}),
        torch_testing={"other": module.Tolerance(rtol=0.1, atol=0.0)},
    )
    monkeypatch.setattr("msprobe_core.api_check.published.standards", lambda: loose)
    after = measured()
    names = ("absolute_threshold_status", "benchmark_status", "single_benchmark_status", "torch_testing_status")
    assert [getattr(before, name) for name in names] == ["error"] * 4
    assert [getattr(after, name) for name in names] == ["pass"] * 4


def test_every_label_is_a_word_of_published_tables():
    assert {text.label for text in standards().algorithms.values()} == {
        "标杆比对法", "绝对阈值法", "二进制一致法", "ULP误差比对法", "双千指标法", "累积误差比对法"}  # fmt: skip
    assert len(ratio_compare.RATIO_DETAIL_COLUMNS) == 28


@pytest.mark.parametrize("text", ["", "version: 1", "- 1", "version: {", "x: !!python/object:os.system a"])
def test_a_file_that_is_none_is_one_sentence(tmp_path, text):
    path = tmp_path / "standards.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"standards\.yaml: is no file of standards"):
        load_standards(path)


def test_unknown_fields_are_errors(tmp_path):
    path = tmp_path / "standards.yaml"
    path.write_text(FILE.read_text(encoding="utf-8") + "more: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="unknown field `more`"):
        load_standards(path)


def test_powers():
    assert [power_text(value) for value in (2.0**-10, 0.5, 1e-16, 1.0, 2.0**-30, 0.001)] == [
        "2^-10", "0.5", "1e-16", "1", "2^-30", "0.001"]  # fmt: skip
    assert math.isclose(standards().dtypes["bfloat16"].absolute_atol, 1e-16)
