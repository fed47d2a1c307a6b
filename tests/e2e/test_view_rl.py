"""A whole run of an RL trainer on the page, in a real browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from browser import CHROMIUM, DRIVER, Browser
from rl_runs import LAYERS, Recipe, write_run

from msprobe_core.rl.recorded import open_run
from msprobe_core.rl_page.build import RLPageOptions, page_of
from msprobe_core.view.page_file import write_page
from msprobe_core.view.stored_graphs import StoredGraphs

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("MSPROBE_REQUIRE_BROWSER"),
    reason="needs chromium and chromedriver (Debian: apt install chromium chromium-driver)",
)

STALE = f"model.layers.{LAYERS - 1}.mlp.down_proj.weight"
HOSTILE = "<img src=x onerror='window.hacked=1'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser((1400, 900)) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of which one parameter never arrives."""
    place = tmp_path_factory.mktemp("rl")
    run = open_run(write_run(place / "run", Recipe(steps=3, unsent=(STALE,))))
    words = {f"▁w{i}": i for i in range(23)} | {HOSTILE: 23}
    (place / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}}))
    with closing(StoredGraphs()) as graphs:
        write_page(page_of(run, None, RLPageOptions(tokenizer=place)), graphs, place / "page.html", [])
    return place / "page.html"


def point_at(browser: Browser, row: int, column: int) -> None:
    """Click the middle of a cell."""
    browser.run(
        """
        const [row, column] = arguments;
        const map = document.querySelector('[data-testid="rl-map"]');
        const [gutter, top, width, height] = map.dataset.cell.split(',').map(Number);
        const box = map.getBoundingClientRect();
        const [clientX, clientY] = [box.left + gutter + (column + 0.5) * width, box.top + top + (row + 0.5) * height];
        map.dispatchEvent(new MouseEvent('click', {bubbles: true, clientX, clientY}));
        """,
        row, column,
    )  # fmt: skip


def test_the_page_opens_at_the_first_cause(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait_for('[data-testid="rl-map"]')
    assert browser.text('[data-testid="rl-sentence"]').startswith("Step 1, sent → received, is the first")
    found = browser.find('[data-testid="rl-findings"] li')
    assert (found.get_attribute("data-row"), found.get_attribute("data-step")) == ("sent → received", "1")
    assert STALE in found.text.replace("\n", "")
    assert "msprobe weights compare" in browser.text(".rl .command code")
    assert browser.problems() == []
    assert [address for address in browser.requested() if not address.startswith(("file:", "data:"))] == []


@pytest.mark.slow
def test_cells_and_findings_lead_to_each_other(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait_for('[data-testid="rl-map"]')
    rows = browser.run("return document.querySelectorAll('[data-testid=rl-findings] li').length")
    assert rows == 1
    point_at(browser, 2, 2)  # log-probs of the actor in step 2
    browser.until(
        lambda: browser.find('[data-testid="rl-findings"] li').get_attribute("data-step") == "2", "another cell"
    )
    assert browser.find('[data-testid="rl-findings"] li').get_attribute("data-row") == "actor_compute_log_prob"
    assert {row.get_attribute("data-step") for row in browser.all('[data-testid="rl-tokens"] tbody tr')} == {"2"}
    point_at(browser, 1, 1)
    assert browser.text('[data-testid="rl-none"]') == "no finding"
    point_at(browser, 1, 0)
    assert browser.text('[data-testid="rl-none"]') == "not recorded"
    browser.find('[data-testid="rl-all"]').click()
    every = browser.all('[data-testid="rl-findings"] li')
    assert len(every) > 3
    every[-1].find_element("css selector", "button").click()
    assert every[-1].get_attribute("class").endswith("chosen")


def test_keys_choose_a_cell(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait_for('[data-testid="rl-map"]')
    browser.run("document.querySelector('[data-testid=rl-map]').focus()")
    browser.keys(*"\ue015\ue015\ue015\ue014\ue014\ue007")  # down: the first cell, and two rows; right, right, Enter
    assert browser.find('[data-testid="rl-findings"] li').get_attribute("data-row") == "actor_compute_log_prob"


def test_curves_of_the_mismatch_are_drawn(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait_for('[data-testid="rl-curve"] canvas')
    drawn = {
        each.get_attribute("data-curve"): each.get_attribute("data-lines")
        for each in browser.all('[data-testid="rl-curve"]')
    }
    assert drawn["kl"] == "2"
    assert drawn["hops"] == "1"
    assert drawn.keys() >= {"difference", "chi2", "perplexity", "weights", "effective", "clipped", "actor/pg_loss"}
    inked = browser.run(
        """
        return [...document.querySelectorAll('[data-testid="rl-curve"] canvas')].map((canvas) =>
            canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((each) => each > 0));
        """
    )
    assert all(inked)
    browser.find('.rl input[type="search"]').send_keys("nothing has this name")
    browser.until(lambda: "actor/pg_loss" not in browser.texts('[data-testid="rl-curve"] figcaption'), "filtered")


def test_worst_tokens_are_shown_as_text_only(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait_for('[data-testid="rl-map"]')
    point_at(browser, 2, 2)
    texts = browser.texts('[data-testid="rl-tokens"] .token-text')
    assert texts
    assert all("w" in text or HOSTILE in text for text in texts)
    assert all(len(browser.all(f'[data-testid="rl-tokens"] tr:nth-child({i + 1}) .at')) == 1 for i in range(len(texts)))
    assert not browser.run("return window.hacked")
    browser.find('[data-testid="language"]').click()
    assert browser.text('[data-testid="rl-sentence"]').startswith("第 1 步的 sent → received 最先超出限值")
    assert browser.problems() == []
    browser.find('[data-testid="language"]').click()
