"""What the page shows over ranks, steps and micro steps: of dumps with several micro steps, and of monitors' files."""

import json
import os
from contextlib import closing
from pathlib import Path

import pytest
import torch
from browser import CHROMIUM, DRIVER, Browser
from msprobe.pytorch import PrecisionDebugger, seed_all
from selenium.webdriver.common.keys import Keys
from torch import nn
from view_pages import write_page

from msprobe_core.compare.pairs import Chosen
from msprobe_core.untrusted.paths import encode_json
from msprobe_core.view.build import build
from msprobe_core.view.page_file import document
from msprobe_core.view.stored_graphs import StoredGraphs
from msprobe_core.view.trends import monitored_data

MONITOR = Path(__file__).parents[1] / "data" / "monitor"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER) and not os.environ.get("MSPROBE_REQUIRE_BROWSER"),
        reason="needs chromium and chromedriver (Debian: apt install chromium chromium-driver)",
    ),
]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def record(dump, faulty_micro_step=None):
    """Train for two steps of three micro-batches each; the middle layer has another epsilon in one of them."""
    seed_all(3)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(dump_path=str(dump), task="statistics", level="mix")
    for step in range(2):
        debugger.start(model)
        for micro_step in range(3):
            model.layers[1][0].eps = 0.5 if (step, micro_step) == (1, faulty_micro_step) else 1e-5
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + micro_step))
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    debugger.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pages")
    record(directory / "golden")
    record(directory / "target", faulty_micro_step=1)
    with closing(StoredGraphs()) as graphs:
        data = build(directory / "target", directory / "golden", graphs)
        micro = json.loads(b"".join(document(data, graphs, range(len(data.units)))))
    made = {
        "micro": micro,
        "two": json.loads(encode_json(monitored_data(MONITOR / "target", MONITOR / "golden", Chosen()))),
        "one": json.loads(encode_json(monitored_data(MONITOR / "target", None, Chosen()))),
    }
    return {name: write_page(directory / f"{name}.html", content) for name, content in made.items()}


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture
def opened(browser, pages):
    def go(name):
        browser.open(pages[name])
        return browser

    yield go
    browser.frame()
    assert browser.problems() == []


def told(browser):
    return "".join(browser.texts(".heat .sr"))


def go_to_row(browser, heat, layer):
    heat.send_keys(Keys.ARROW_DOWN)
    return told(browser).startswith(f"{layer} · ")


def is_at(browser, step, following):
    """Whether the text for screen readers is of this step's cell, with `following` after it."""
    _, unit, second, *_ = told(browser).split(" · ")
    return unit.startswith(step) and second == following


class TestMicroSteps:
    def test_the_map_has_a_column_for_each_and_keys_lead_into_it(self, opened):
        browser = opened("micro")
        browser.keys("4")  # the third tab shows how the runs were configured
        heat = browser.wait_for("[data-testid='heat']")
        browser.until(lambda: go_to_row(browser, heat, "layers.1"), "the layer is not there")
        seen = {}
        for _ in range(6):  # two steps of three micro steps
            name, unit, micro_step, verdict = told(browser).split(" · ")
            seen[unit.partition("/")[0], micro_step] = verdict.partition(" (")[0]
            assert name == "layers.1"
            heat.send_keys(Keys.ARROW_RIGHT)
        assert [key for key, verdict in seen.items() if verdict != "within its limit"] == [("step1", "Micro step 1")]
        assert len(seen) == 6
        heat.send_keys(Keys.ARROW_LEFT, Keys.ENTER)  # from the last column, which the arrow does not leave
        browser.wait_for(".box.chosen")
        assert browser.text(".panel [data-testid='name']").strip() == "Module.layers.1.Sequential.forward.1"

    def test_they_can_be_put_together_and_stand_first(self, opened):
        browser = opened("micro")
        browser.keys("4")
        heat = browser.wait_for("[data-testid='heat']")
        select = browser.find("select")
        select.find_element("css selector", "option[value='micro']").click()
        heat.send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
        browser.until(lambda: is_at(browser, "step1", "Micro step 0"), "columns are not by micro step")
        browser.click("apart")
        heat.send_keys(Keys.ARROW_LEFT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        browser.until(lambda: is_at(browser, "step1", "beyond its limit (0.74)"), "micro steps are still apart")
        assert browser.all("option[value='micro']") == []


class TestMonitor:
    def test_the_first_sentence_and_the_trend_it_speaks_of(self, opened):
        browser = opened("two")
        assert browser.text(".verdict-state") == "The runs diverge"
        assert "step 2, rank 1 at fc2.input (actv): its norm is 50 % off" in browser.text("[data-testid='sentence']")
        assert browser.texts("[role='tab']") == ["Summary", "Monitor", "Trends"]
        browser.click("show-trend")
        browser.wait_for("[data-testid='plot'] canvas")
        assert browser.text("main h2").split() == ["fc2.input", "actv", "·", "Micro", "step", "0"]
        assert len(browser.all(".u-series")) == 1 + 2 * 2

    def test_values_that_are_not_finite_are_told_where_no_line_shows_them(self, opened):
        browser = opened("one")
        assert browser.text(".verdict-state") == "Not finite"
        browser.keys("3")
        assert browser.wait_for("[data-testid='not-finite']").text == "Not finite: rank 1, step 3"
        browser.search("fc2.bias grad_unreduced")
        browser.until(lambda: browser.texts(".found") == ["1 found"], "the quantity is not found")

    def test_keys_of_graphs_do_nothing(self, opened):
        browser = opened("two")
        browser.keys("n", "p", "s", "f", "+", "5", "2", "3")
        assert browser.find("[role='tab'][aria-selected='true']").text == "Trends"
        browser.find(".rows").send_keys(Keys.ARROW_DOWN)
        browser.until(lambda: "fc2.output" in browser.text("main h2"), "the arrow chooses nothing")
