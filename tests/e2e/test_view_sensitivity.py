"""Bisections and condition maps on the page, in a real browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from bisect_results import part, result
from browser import CHROMIUM, DRIVER, Browser

from msprobe_core.free_benchmark.bisect_files import write_bisect
from msprobe_core.view.build import build
from msprobe_core.view.inputs import subject_of
from msprobe_core.view.page_file import units_that_fit, write_page
from msprobe_core.view.stored_graphs import StoredGraphs

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("MSPROBE_REQUIRE_BROWSER"),
    reason="needs chromium and chromedriver (Debian: apt install chromium chromium-driver)",
)

HOSTILE = "<img src=x onerror='window.hacked=1'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser((1400, 900)) as opened:
        yield opened


def page_of(path: Path, subject: Path) -> Path:
    found = subject_of(subject)
    with closing(StoredGraphs()) as graphs:
        data = build(found.target, found.golden, graphs)
        write_page(data, graphs, path, units_that_fit(data, graphs))
    return path


def write_reactions(run: Path) -> Path:
    """Write what the task writes of two steps: of the second, more calls were repeated."""
    for step, factors in ((0, [2.0]), (3, [1.0, 60.0, "Infinity", None, 4.0])):
        unit = run / f"step{step}" / "rank0"
        unit.mkdir(parents=True)
        lines = [
            {
                "step": step, "call": f"Functional.f{i}{HOSTILE if i == 1 else ''}.{i}.forward", "verdict": "right",
                "tensors": "f32[2] -> f32", "position": 10 - i,
                "outputs": [{"path": "0", "reason": "", "times": 0.5, "amplification": factor}],
            }
            for i, factor in enumerate(factors)
        ]  # fmt: skip
        (unit / "free_benchmark.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{")
    return run


@pytest.mark.slow
def test_the_map_shows_the_calls_of_one_step_in_their_order(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path / "page.html", write_reactions(tmp_path / "run")))
    browser.wait_for('[data-testid="condition-map"]')
    bars = browser.run(
        "return [...document.querySelectorAll('[data-call]')].map((bar) => [bar.dataset.call, bar.offsetHeight])"
    )
    assert [name.split(".")[1][:2] for name, _ in bars] == ["f4", "f2", "f1", "f0"]
    heights = {name.split(".")[1][:2]: height for name, height in bars}
    assert heights["f2"] > heights["f1"] > heights["f4"] > heights["f0"] > 0
    assert "grow most in Functional.f2.2.forward of step 3 of rank0" in browser.text(
        '[data-testid="sensitivity-headline"]'
    )
    browser.find('[data-call^="Functional.f1"]').click()
    assert HOSTILE in browser.text('[data-testid="conditions"] .chosen')
    assert "60" in browser.text('[data-testid="conditions"] .chosen')
    browser.find('[data-testid="language"]').click()
    assert "放大最多" in browser.text('[data-testid="sensitivity-headline"]')
    assert browser.problems() == []
    assert not browser.run("return window.hacked")


@pytest.mark.parametrize("subject", ["", "bisect.json"])
def test_a_bisection_is_a_ranked_table(browser: Browser, tmp_path: Path, subject: str) -> None:
    parts = (part("layers.9.mlp (Linear)", loss=1.05), part(HOSTILE, "b", share=-0.3, times=1.5, is_joint=True))
    write_bisect(result(parts=parts), tmp_path / "found")
    browser.open(page_of(tmp_path / "page.html", tmp_path / "found" / subject))
    browser.wait_for('[data-testid="raised-parts"]')
    rows = browser.texts('[data-testid="raised-parts"] tbody tr')
    assert rows[0].startswith("layers.9.mlp (Linear)")
    assert "90.0 %" in rows[0]
    assert "1.05" in rows[0]
    assert f"{HOSTILE} … b: 2 modules only together" in rows[1]
    widths = browser.run("return [...document.querySelectorAll('.share-bar span')].map((bar) => bar.offsetWidth)")
    assert widths[0] > 2 * widths[1] > 0
    assert browser.problems() == []
    assert not browser.run("return window.hacked")
