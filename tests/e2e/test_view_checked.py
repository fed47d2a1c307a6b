"""Checked calls on the page, in a real browser: the table, the details of one call, and the way to the graph."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, DRIVER, Browser
from checked_calls import call, not_checked, output, some_calls
from dumps import api, tensor, write_dump
from selenium.webdriver.common.keys import Keys

from msprobe_core.api_check.verdict import Verdict
from msprobe_core.findings import noted
from msprobe_core.report.api_check_files import write_checks
from msprobe_core.view.build import build
from msprobe_core.view.data import ViewData
from msprobe_core.view.inputs import subject_of
from msprobe_core.view.page_file import units_that_fit, write_page
from msprobe_core.view.stored_graphs import StoredGraphs

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("MSPROBE_REQUIRE_BROWSER"),
    reason="needs chromium and chromedriver (Debian: apt install chromium chromium-driver)",
)

HOSTILE = "Torch.<img src=x onerror='window.hacked=1'>.0.forward"
WRONG = "Functional.softmax.1.forward"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser((1500, 1000)) as opened:
        yield opened


def page_of(path: Path, subject: Path) -> tuple[Path, ViewData]:
    """Write a page of a run or of an ``acc_check.json``."""
    found = subject_of(subject)
    graphs = StoredGraphs()
    data = build(found.target, found.golden, graphs, checks=found.checks)
    write_page(data, graphs, path, units_that_fit(data, graphs))
    graphs.close()
    return path, data


def write_run(root: Path, more: int = 0) -> Path:
    """Write a run of one rank and the checks of its calls next to it."""
    calls = [*some_calls(), not_checked(HOSTILE, noted("<b>bold</b>"))]
    calls += [call(f"Torch.add.{i}.forward", position=20 + i, times=0.5, reach=i) for i in range(more)]
    data: dict[str, Any] = {}
    for i, each in enumerate(calls):
        if each.phase.value == "forward":
            data[each.entry] = api(tensor([float(i), 2.0]), output=tensor([i + 1.0, 3.0]))
    dump = root / "run" / "step0" / "rank0"
    write_dump(dump, data, end={"state": "complete", "calls": len(data), "windows": 1})
    write_checks(calls, dump, dump=dump)
    return root / "run"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checked")
    return page_of(root / "page.html", write_run(root, more=1500))[0]


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    """Opens the page; at the end nothing must have gone wrong."""
    browser.open(page)
    browser.wait_for(".check-rows .check-row")
    yield browser
    assert browser.problems() == []
    assert not browser.run("return window.hacked")


def entries(browser: Browser) -> list[str]:
    """Return the calls that are listed, as far as they are drawn."""
    return browser.run("return [...document.querySelectorAll('.check-rows .check-row')].map((e) => e.dataset.entry)")


def click(browser: Browser, selector: str) -> None:
    browser.find(selector).click()


def test_the_worst_call_comes_first_and_is_shown(opened: Browser) -> None:
    assert opened.text('[data-testid="checked-headline"]') == (
        "2 of 1,507 checked calls are wrong; the one with the largest effect is Torch.div.0.forward"
    )
    assert entries(opened)[:4] == ["Torch.div.0.forward", WRONG, "Tensor.mul.0.forward", "Torch.sub.0.forward"]
    assert opened.text('[data-testid="checked-name"]') == "Torch.div.0.forward"
    assert opened.text(".pill") == "Wrong call"


def test_what_is_told_of_a_call(opened: Browser) -> None:
    click(opened, f'[data-entry="{WRONG}"]')
    detail = opened.text('[data-testid="checked-detail"]')
    for said in (
        "off by 320 times what rounding explains",
        "3.2e-4",
        "1.0e-6",
        "[2, 5]",
        "-9.5 standard errors",
        "6/6",
    ):
        assert said in detail
    assert f"--script {WRONG}" in opened.text(".panel .command code")
    error, allowed = (opened.find(f".allowance {each}").rect for each in (".mark-error", ".allowed"))
    assert error["x"] > allowed["x"] + allowed["width"]  # outside of what is allowed


def test_published_columns_are_shown_on_demand(opened: Browser) -> None:
    assert not opened.find(".published dl").is_displayed()
    click(opened, ".published summary")
    assert "cosine\n0.999" in opened.text(".published dl")


def test_accepted_mutants_are_named(opened: Browser) -> None:
    click(opened, '[data-filter="weak"]')
    assert entries(opened) == ["Functional.softmax.0.forward"]
    click(opened, '[data-entry="Functional.softmax.0.forward"]')
    assert "2/6" in opened.text(".power h3")
    assert "would have passed" in opened.text('.power [data-mutant="zeros"]')
    assert "would have passed" not in opened.text('.power [data-mutant="shuffled"]')


def test_filters_words_and_order(opened: Browser) -> None:
    click(opened, '[data-filter="wrong"]')
    click(opened, '[data-filter="ill_conditioned"]')
    assert entries(opened) == ["Torch.div.0.forward", WRONG, "Torch.sub.0.forward"]
    opened.find(".checked .search").send_keys("softmax")
    assert entries(opened) == [WRONG]
    click(opened, '[data-filter="wrong"]')
    assert "No call" in opened.text(".check-rows .empty")
    click(opened, '[data-filter="ill_conditioned"]')
    opened.find(".checked .search").send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    click(opened, '[data-value="reach"]')
    assert entries(opened)[0] == "Torch.add.1499.forward"


def test_the_keyboard_reaches_every_call(opened: Browser) -> None:
    rows = opened.find('[data-testid="checked-rows"]')
    rows.send_keys(Keys.ARROW_DOWN)
    assert opened.text('[data-testid="checked-name"]') == WRONG
    rows.send_keys(Keys.END)
    opened.wait_for('[data-entry="Torch.add.1499.forward"]')
    assert opened.text('[data-testid="checked-name"]') == "Torch.add.1499.forward"
    assert len(entries(opened)) < 80  # only what is seen is drawn


def test_a_call_is_found_in_the_graph(opened: Browser) -> None:
    click(opened, f'[data-entry="{WRONG}"]')
    click(opened, '[data-testid="checked-jump"]')
    opened.wait_for('[data-testid="name"]')
    assert opened.text('[data-testid="name"]') == WRONG


def test_names_are_text(opened: Browser) -> None:
    opened.find(".checked .search").send_keys("onerror")
    assert entries(opened) == [HOSTILE]
    opened.find(".check-rows .check-row").click()
    assert "<b>bold</b>" in opened.text('[data-testid="checked-detail"]')


def test_why_calls_were_not_checked(opened: Browser) -> None:
    click(opened, ".check-reasons summary")
    assert opened.text(".check-reasons li").split() == ["2", "it", "draws", "random", "numbers"]


def test_chinese(opened: Browser) -> None:
    click(opened, '[data-testid="language"]')
    assert "已检查的 1,507 个调用中有 2 个错误" in opened.text('[data-testid="checked-headline"]')
    click(opened, f'[data-entry="{WRONG}"]')
    assert "调用内舍入可解释" in opened.text(".allowance figcaption")


def test_the_summary_leads_to_it(opened: Browser) -> None:
    click(opened, "#tab-summary")
    assert opened.text('[data-testid="sentence"]').startswith("2 of 1,507 checked calls are wrong")
    click(opened, '[data-testid="show-checked"]')
    assert opened.find("#tab-checked").get_attribute("aria-selected") == "true"


def test_a_copied_file_needs_no_dump(browser: Browser, tmp_path: Path) -> None:
    weird = "Torch.it's.0.forward"
    calls = [call(weird, Verdict.WRONG, outputs=(output(Verdict.WRONG, 3.0),))]
    write_checks(calls, tmp_path, dump=Path("/nowhere/a dump"))
    page, data = page_of(tmp_path / "page.html", tmp_path / "acc_check.json")
    assert not data.units
    browser.open(page)
    browser.wait_for(".check-rows .check-row")
    assert browser.texts('[role="tab"]') == ["Summary", "API checks"]
    assert not browser.all('[data-testid="checked-jump"]')
    command = browser.text(".panel .command code")
    assert command == """msprobe acc_check -api_info '/nowhere/a dump' --script 'Torch.it'\\''s.0.forward'"""
    assert browser.problems() == []
