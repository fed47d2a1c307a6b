"""The page of `msprobe view` in a real browser: opened from disk, as a person would who looks for a fault.

    MSPROBE_SCREENSHOTS=demo_output/result/view.html pytest tests/e2e/test_view_page.py -k screenshots

renews the pictures of the documentation, from the page of ``make demo``.
"""

import itertools
import json
import os
import threading
from pathlib import Path

import msgspec
import pytest
from browser import CHROMIUM, DRIVER, Browser
from finding_samples import core_codes, filled
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from view_pages import PAGE, Model, comparison, example, flat, write_page

from msprobe_core.compare.mapping_files import read_matching
from msprobe_core.compare.pairs import Chosen
from msprobe_core.findings import Language, worded
from msprobe_core.untrusted.paths import encode_json
from msprobe_core.view.data import Graph, ViewData, said_of
from msprobe_core.view.serve import PageServer
from msprobe_core.view.stored_graphs import StoredGraphs
from msprobe_core.view.trends import monitored_data

REPOSITORY = Path(__file__).parents[2]
IMAGES = REPOSITORY / "docs" / "images"
MONITORS = [REPOSITORY / "tests" / "data" / "monitor" / side for side in ("target", "golden")]
HOSTILE = '</script><img src=x onerror="window.hacked=1"><b>${7*7}</b>\'`\u202e'
CULPRIT = "Functional.scaled_dot_product_attention.2.forward"

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("MSPROBE_REQUIRE_BROWSER"),
    reason="needs chromium and chromedriver (Debian: apt install chromium chromium-driver)",
)


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pages")

    made = {
        "one": comparison(),
        "agree": comparison(Model(fault=None)),
        "many": comparison(Model(layers=6), ranks=8, steps=3),
        "hostile": comparison(Model(hostile=HOSTILE)),
        "recorded": example("comparison"),
        "dump": example("dump"),
    }
    return {name: write_page(directory / f"{name}.html", data) for name, data in made.items()}


@pytest.fixture
def opened(browser, pages):
    """Opens a page by its name; at the end nothing must have gone wrong, and nothing been asked for but the file."""
    seen = []

    def go(name):
        browser.open(pages[name])
        seen.append(pages[name].as_uri())
        return browser

    yield go
    browser.frame()
    assert browser.problems() == []
    assert {address for address in browser.requested() if not address.startswith(("data:", "blob:"))} == {seen[-1]}


def selected(browser):
    return browser.text(".panel [data-testid='name']").strip()


def heat_cell(browser, testid, row, column):
    """Click a cell of a heat map."""
    element = browser.find(f"[data-testid='{testid}']")
    left, top, width, height = (int(number) for number in element.get_attribute("data-cell").split(","))
    box = element.rect
    x, y = left + (column + 0.5) * width, top + (row + 0.5) * height
    offset = (round(x - box["width"] / 2), round(y - box["height"] / 2))
    ActionChains(browser.driver).move_to_element_with_offset(element, *offset).click().perform()


class TestSummary:
    def test_says_whether_where_and_how_sure(self, opened):
        browser = opened("one")
        assert browser.text(".verdict-state") == "Fault found"
        assert CULPRIT in browser.text("[data-testid='sentence']")
        first = browser.text("[data-culprit='1']")
        for said in (
            CULPRIT,
            "strong evidence",
            "41 × its limit",  # noqa: RUF001 - as on the page
            "its result is wrong while all inputs are right",
            "norm is 27 % off",
            "msprobe confirm",
        ):
            assert said in first
        assert browser.title_shown() == "target against golden - msprobe"

    def test_the_first_screen_holds_the_first_suspect_and_its_button(self, opened):
        browser = opened("recorded")
        button = browser.find("[data-testid='jump-1']").rect
        assert button["y"] + button["height"] < browser.run("return innerHeight")

    def test_jumps_to_the_culprit(self, opened):
        browser = opened("one")
        browser.click("jump-1")
        browser.wait_for(".box.chosen")
        assert selected(browser) == CULPRIT
        browser.still()
        box, room = browser.find(".box.chosen").rect, browser.find(".canvas").rect
        assert room["x"] < box["x"] < room["x"] + room["width"] - box["width"]
        assert room["y"] < box["y"] < room["y"] + room["height"] - box["height"]
        assert browser.find(".box.chosen .suspect").text == "1"
        assert browser.find(f"[role='treeitem'][data-name='{CULPRIT}']").get_attribute("aria-selected") == "true"

    def test_two_runs_that_agree(self, opened):
        browser = opened("agree")
        assert browser.text(".verdict-state") == "The runs agree"
        assert browser.all("[data-culprit]") == []

    def test_a_page_without_data_says_how_to_make_one(self, browser):
        browser.open(PAGE)
        assert "msprobe view" in browser.text("#root")
        assert browser.problems() == []

    def test_data_that_cannot_be_read_are_told(self, browser, tmp_path):
        browser.open(write_page(tmp_path / "odd.html", comparison() | {"version": 99}))
        assert "version 99" in browser.text("#root")


class TestGraph:
    @pytest.fixture
    def graph(self, opened):
        def go(name="one"):
            browser = opened(name)
            browser.keys("2")
            browser.wait_for(".box")
            return browser

        return go

    def test_opens_and_closes_modules(self, graph):
        browser = graph()
        inside = "[data-name='Module.model.layers.0.mlp.LlamaMLP.forward.0']"
        assert browser.all(f".box{inside}") == []
        row = browser.find("[role='treeitem'][data-name='Module.model.layers.0.LlamaDecoderLayer.forward.0']")
        assert row.get_attribute("aria-expanded") == "false"
        row.find_element(By.CSS_SELECTOR, ".row-fold").click()
        browser.wait_for(f".box{inside}")
        box = browser.find(".box.open[data-name='Module.model.layers.0.LlamaDecoderLayer.forward.0']")
        box.find_element(By.CSS_SELECTOR, ".box-fold").click()
        browser.until(lambda: not browser.all(f".box{inside}"), "the module stays open")

    def test_modules_have_the_colour_of_what_is_in_them(self, graph):
        browser = graph()
        colour = {
            name: browser.find(
                f".box[data-name='Module.model.layers.{name}.LlamaDecoderLayer.forward.0']"
            ).value_of_css_property("background-color")
            for name in (0, 1, 2, 3)
        }
        assert colour[2] not in (colour[0], colour[1], colour[3])
        assert colour[3] not in (colour[0], colour[1])
        shapes = [
            browser.all(f".box[data-name='Module.model.layers.{layer}.LlamaDecoderLayer.forward.0'] .shape-{shape}")
            for layer, shape in ((0, "pass"), (2, "error"), (3, "warning"))
        ]
        assert all(len(found) == 1 for found in shapes)

    def test_data_flows_along_edges(self, graph):
        browser = graph()
        assert len(browser.all(".react-flow__edge")) >= 3
        browser.keys("n", "n")
        browser.wait_for(".react-flow__edge.touches")
        assert "Functional.transpose.2.forward" in browser.text(".panel")

    def test_search_lists_and_finds(self, graph):
        browser = graph()
        browser.search("Down_Proj layers.3 FORWARD")
        assert browser.texts(".found") == ["1 found"]
        browser.keys(Keys.ENTER)
        assert selected(browser) == "Module.model.layers.3.mlp.down_proj.Linear.forward.0"
        browser.wait_for(".box.chosen")
        browser.escape()
        browser.escape()
        assert browser.find(".search").get_attribute("value") == ""

    def test_filters_by_verdict(self, graph):
        browser = graph()
        chip = browser.find("[data-filter='none']")
        chip.click()
        assert chip.get_attribute("aria-pressed") == "true"
        assert sorted(browser.texts(".rows .row-label")) == ["clamp", "clip"]
        chip.click()
        browser.find("[data-filter='error']").click()
        assert browser.texts(".rows .row-path") == [CULPRIT]

    @pytest.mark.slow
    def test_next_and_previous_difference(self, graph):
        browser = graph()
        browser.keys("n")
        first = selected(browser)
        browser.keys("n")
        assert selected(browser) == CULPRIT
        browser.keys("p")
        assert selected(browser) == first
        assert browser.text("[data-testid='differences']").startswith("1 of ")
        browser.keys("p")
        assert browser.text("[data-testid='differences']").startswith("112 of ")

    def test_arrows_enter_and_escape(self, graph):
        browser = graph()
        browser.find(".rows").send_keys(Keys.HOME)
        assert selected(browser) == "Module.model.LlamaModel.forward.0"
        browser.keys(Keys.ARROW_DOWN)
        layer = "Module.model.layers.0.LlamaDecoderLayer.forward.0"
        assert selected(browser) == layer
        browser.keys(Keys.ENTER)
        browser.wait_for(f".box.open[data-name='{layer}']")
        browser.keys(Keys.ARROW_RIGHT)
        assert selected(browser) == "Module.model.layers.0.input_layernorm.LlamaRMSNorm.forward.0"
        browser.keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
        assert browser.all(f".box.open[data-name='{layer}']") == []
        canvas = browser.find("[data-testid='canvas']")
        canvas.send_keys(Keys.ARROW_DOWN)
        assert selected(browser) == "Module.model.layers.1.LlamaDecoderLayer.forward.0"
        outline = browser.run("return getComputedStyle(arguments[0]).outlineStyle", canvas)
        assert outline == "solid"
        browser.escape()
        assert browser.all(".box.chosen") == []

    @pytest.mark.slow
    def test_side_by_side_moves_as_one(self, graph):
        browser = graph()
        browser.keys("n", "n", "s")
        browser.wait_for(".pane-golden .box.chosen")
        browser.still()

        def place(pane):
            return browser.run(
                "return document.querySelector(arguments[0]).style.transform", f".pane-{pane} .react-flow__viewport"
            )

        before = place("target")
        assert before == place("golden")
        pane = browser.find(".pane-golden .react-flow__pane")
        ActionChains(browser.driver).move_to_element_with_offset(pane, 0, -250).click_and_hold().move_by_offset(
            -60, 40
        ).release().perform()
        browser.until(lambda: place("golden") != before, "the golden pane does not move")
        assert place("target") == place("golden")
        layer = "Module.model.layers.3.LlamaDecoderLayer.forward.0"
        row = browser.find(f"[role='treeitem'][data-name='{layer}']")
        row.click()
        row.find_element(By.CSS_SELECTOR, ".row-fold").click()
        for side in ("target", "golden"):
            browser.wait_for(f".pane-{side} .box.open[data-name='{layer}']")

    def test_what_one_side_lacks_is_a_gap_on_it(self, graph):
        browser = graph()
        browser.keys("s")
        row = browser.find("[role='treeitem'][data-name='Functional.clamp.0.forward']")
        row.click()
        browser.wait_for(".pane-golden .box.ghost.chosen")
        assert browser.all(".pane-target .box.ghost.chosen") == []
        assert "only in target" in browser.text(".panel")

    @pytest.mark.slow
    def test_panel_has_both_sides_and_the_metrics(self, graph):
        browser = graph("recorded")
        browser.keys("1")
        browser.click("jump-1")
        panel = browser.wait_for(".panel .value")
        said = browser.text(".panel")
        for expected in (
            "input.eps",
            "0.5",
            "1e-05",
            "torch.float32",
            "[2, 8, 16]",
            "requires_grad",
            "cosine_similarity",
            "the arguments differ",
        ):
            assert expected in said, expected
        assert panel.is_displayed()
        browser.run("document.querySelector('.panel-body').scrollTop = 1e6")
        browser.still()
        assert "view_training.py" in browser.text(".panel")
        commands = browser.texts(".panel .command code")
        assert (
            "msprobe confirm run/target/step0/rank1 run/golden/step0/rank1 Functional.layer_norm.1.forward" in commands
        )

    @pytest.mark.slow
    def test_matches_by_hand_go_to_a_mapping_file(self, graph):
        browser = graph()
        browser.find("[role='treeitem'][data-name='Functional.clamp.0.forward']").click()
        browser.click("match-start")
        browser.find("[role='treeitem'][data-name='Torch.clip.0.forward']").click()
        browser.click("match")
        assert "Functional.clamp.0.forward" in browser.text(".panel")
        browser.find(".mappings summary").click()
        browser.click("download")
        file = browser.downloads / "mapping.yaml"
        browser.until(file.exists, "no file was downloaded")
        [rule] = read_matching(data_mapping=file).rows
        assert rule.target == "Functional.clamp.0.forward.output.0"
        assert rule.golden == "Torch.clip.0.forward.output.0"
        browser.driver.refresh()
        browser.wait_for(".app")
        browser.keys("2")
        browser.until(lambda: "(1)" in "".join(browser.texts(".mappings summary")), "the match is forgotten")
        browser.find(".mappings summary").click()
        browser.find(".mappings .link").click()
        browser.until(lambda: not browser.all(".mappings"), "the match is still there")
        file.unlink()

    def test_what_is_unmatched_by_hand_has_no_partner_in_the_file(self, graph):
        browser = graph()
        browser.find("[role='treeitem'][data-name='Module.model.layers.0.LlamaDecoderLayer.forward.0']").click()
        browser.click("unmatch")
        browser.find(".mappings summary").click()
        browser.click("download")
        file = browser.downloads / "mapping.yaml"
        browser.until(file.exists, "no file was downloaded")
        rules = read_matching(data_mapping=file).rows
        assert {rule.golden for rule in rules} == {""}
        targets = {rule.target for rule in rules}
        assert "Functional.linear.0.forward.output.0" in targets  # which is inside
        assert "Functional.clamp.0.forward.output.0" not in targets
        browser.find(".mappings .link").click()
        file.unlink()

    def test_phases(self, graph):
        browser = graph()
        browser.find(".graph-tools [data-value='backward']").click()
        browser.until(
            lambda: (
                not any(
                    ".forward." in name
                    for name in browser.run(
                        "return [...document.querySelectorAll('.rows [data-name]')].map((e) => e.dataset.name)"
                    )
                )
            ),
            "forward is still there",
        )
        browser.find(".graph-tools [data-value='forward']").click()
        browser.keys("n")
        assert "forward" in selected(browser)


class TestOverview:
    @pytest.mark.slow
    def test_a_cell_leads_into_the_rank(self, opened):
        browser = opened("many")
        browser.keys("3")
        browser.wait_for("[data-testid='heat'] canvas")
        browser.still()
        heat_cell(browser, "heat", 2, 7)  # step 0, rank 7, layer 2
        browser.wait_for(".box.chosen")
        assert selected(browser) == "Module.model.layers.2.LlamaDecoderLayer.forward.0"
        assert browser.text("[data-testid='unit'] option:checked").startswith("step0/rank7")

    def test_keys_reach_every_cell(self, opened):
        browser = opened("many")
        browser.keys("3")
        heat = browser.wait_for("[data-testid='heat']")
        heat.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
        browser.until(
            lambda: "model.layers.1 · step0/rank1" in "".join(browser.texts(".heat .sr")), "the cell is not told"
        )
        heat.send_keys(Keys.ENTER)
        browser.wait_for(".box.chosen")
        assert selected(browser) == "Module.model.layers.1.LlamaDecoderLayer.forward.0"

    @pytest.mark.slow
    def test_groups_and_communication(self, opened):
        browser = opened("many")
        browser.keys("3")
        browser.wait_for(".rank-node")
        assert {"DP 0", "DP 1", "PP 0", "PP 1"} <= set(browser.texts(".rank-group"))
        assert len(browser.all(".rank-map .react-flow__edge")) == 8
        browser.all(".rank-node")[3].click()
        browser.wait_for(".box")
        assert browser.text("[data-testid='unit'] option:checked").startswith("step0/rank3")
        browser.search("functional.linear.0.forward", Keys.ENTER)
        assert "step0/rank4" in browser.text(".panel .peers")
        browser.find(".panel .peers .link").click()
        browser.until(
            lambda: browser.text("[data-testid='unit'] option:checked").startswith("step0/rank4"),
            "the partner is not shown",
        )

    def test_trends(self, opened):
        browser = opened("many")
        browser.keys("4")
        browser.wait_for("[data-testid='plot'] canvas")
        assert browser.texts(".choice [aria-checked='true']")[:2] == ["norm", "step"]
        assert len(browser.all(".u-series")) == 1 + 2 * 8

    def test_any_value_of_any_node_has_a_trend(self, opened):
        """Also one that the data hold no trend of: from the graphs in the file."""
        browser = opened("many")
        browser.keys("2")
        browser.search("Functional.silu.3.forward", Keys.ENTER)
        browser.until(lambda: selected(browser) == "Functional.silu.3.forward", "the call is not found")
        buttons = [each for each in browser.all(".panel .value-actions .button") if each.text == "Trend"]
        assert len(buttons) == 2  # of what it was given and of what it made
        browser.run("arguments[0].click()", buttons[1])
        browser.wait_for("[data-testid='plot'] canvas")
        assert browser.text("main h2") == "Functional.silu.3.forward output.0"
        statistics = ["norm", "max", "min", "mean", "num_nan", "num_inf", "error", "score"]
        assert browser.texts(".choice [role='radio']")[:8] == statistics
        assert len(browser.all(".u-series")) == 1 + 2 * 8

    def test_tensors(self, opened):
        browser = opened("one")
        browser.find("[data-culprit='1'] .actions .button:nth-child(2)").click()
        browser.wait_for("[data-testid='tensor-error'] canvas")
        assert "largest difference at [0, 7, 11]" in browser.text(".card")
        browser.wait_for("[data-testid='token-error'] canvas")
        assert "Error per token" in browser.text(".card")


class TestPage:
    def test_chinese_follows_the_browser_and_can_be_switched(self, browser, pages):
        agent = browser.run("return navigator.userAgent")
        browser.driver.execute_cdp_cmd(
            "Emulation.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": "zh-CN"}
        )
        try:
            browser.open(pages["one"])
            assert browser.text(".verdict-state") == "发现问题"
            assert browser.run("return document.documentElement.lang") == "zh-CN"
            browser.click("language")
            assert browser.text(".verdict-state") == "Fault found"
        finally:
            browser.driver.execute_cdp_cmd(
                "Emulation.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": "en-US"}
            )

    def test_every_finding_is_worded_as_python_words_it(self, browser, tmp_path):
        """In both languages, with the number formats of Python; what the page does not know stays as it is."""
        samples = [finding for code in core_codes() for finding in filled(code)]
        data = comparison()
        data["verdict"]["detail"] = [msgspec.to_builtins(said_of(finding)) for finding in samples]
        data["notes"] = [HOSTILE, {"code": "later.code", "level": "note", "fields": {}}]
        browser.open(write_page(tmp_path / "findings.html", data))
        for language in Language:
            expected = [" ".join(worded(finding, language).split()) for finding in samples]
            shown = [" ".join(text.split()) for text in browser.texts(".detail")]
            assert len(shown) == len(expected)
            for finding, own, other in zip(samples, expected, shown, strict=True):
                assert own == other, (finding.code, language)
            assert browser.texts(".notes li") == [HOSTILE, "later.code"]
            browser.click("language")
        assert browser.problems() == []

    def test_a_recorded_page_reads_chinese_but_for_names(self, opened):
        browser = opened("recorded")
        browser.click("language")
        try:
            browser.frame()
            text = browser.text(".summary")
            assert "两次运行(第 0 步、rank 1)在 Functional.layer_norm.1.forward" in text
            assert "epsilon 不同" in text
            for said in ("What it was given", "the arguments differ", "all equal", "Looked at", "rounding"):
                assert said not in text, said
            browser.click("jump-1")
            browser.wait_for(".panel .value")
            assert "参数不同,0.5 与 1e-05" in browser.text(".panel .reason")
        finally:
            browser.click("language")

    @pytest.mark.parametrize("width", [760, 420])
    def test_a_narrow_window_shows_the_suspect_and_cuts_nothing(self, opened, width):
        browser = opened("recorded")
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            browser.frame()
            assert browser.run("return document.documentElement.scrollWidth") == width
            heads = [each.rect for each in browser.all(".header > *") if each.is_displayed()]
            assert all(a["x"] + a["width"] <= b["x"] + 1 for a, b in itertools.pairwise(heads))
            assert heads[-1]["x"] + heads[-1]["width"] <= width
            browser.run("arguments[0].scrollIntoView()", browser.find("[data-testid='jump-1']"))
            browser.click("jump-1")
            browser.wait_for(".box.chosen")
            browser.still()
            box, room = browser.find(".box.chosen").rect, browser.find(".canvas").rect
            assert room["width"] >= 60
            assert room["x"] - box["width"] < box["x"] < room["x"] + room["width"]
        finally:
            browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_light_and_dark(self, opened):
        browser = opened("one")
        light = browser.find("body").value_of_css_property("background-color")
        browser.click("theme")
        assert browser.find("body").value_of_css_property("background-color") != light

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["hostile", "recorded"])
    def test_hostile_names_are_text(self, opened, name):
        browser = opened(name)
        for tab in "2345":
            browser.keys(tab)
            browser.frame()
        browser.keys("2")
        browser.search("<img src=x", Keys.ENTER)
        browser.wait_for(".box.chosen")
        assert "<img src=x" in browser.text(".panel")
        assert browser.run("return document.images.length") == 0
        assert browser.run("return window.hacked") is None

    def test_a_single_dump_is_there_to_explore(self, opened):
        browser = opened("dump")
        browser.wait_for(".box.plain")
        assert browser.all(".box .icon[class*='shape']") == []
        browser.search("softmax", Keys.ENTER)
        assert "softmax" in selected(browser)
        browser.escape()
        browser.keys("1")
        assert "single run" in browser.text("[data-testid='sentence']")

    def test_everything_can_be_reached_with_tab_and_has_a_name(self, opened):
        browser = opened("one")
        browser.keys("2")
        browser.wait_for(".box")
        nameless = browser.run("""
            return [...document.querySelectorAll('button, select, input, [role=tree], [tabindex="0"]')]
              .filter((e) => e.offsetParent && !(e.textContent.trim() || e.ariaLabel || e.title || e.labels?.length))
              .map((e) => e.outerHTML)""")
        assert nameless == []
        browser.run("document.activeElement.blur()")
        seen = set()
        for _ in range(40):
            browser.keys(Keys.TAB)
            seen.add(
                browser.run("return document.activeElement.getAttribute('role') ?? document.activeElement.className")
            )
        assert {"tab", "search", "tree", "group", "radio"} <= seen


@pytest.mark.slow
def test_served_graphs_come_when_they_are_looked_at(browser):
    data = msgspec.convert(example("comparison"), ViewData)
    graphs = StoredGraphs()
    for number, unit in enumerate(data.units):
        graphs.put(number, msgspec.convert(unit.graph, Graph))
    empty = [msgspec.structs.replace(unit, graph=None) for unit in data.units]
    server = PageServer(msgspec.structs.replace(data, units=empty), graphs)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        browser.open(server.url)
        assert browser.text(".verdict-state") == "Fault found"
        browser.click("jump-1")
        browser.wait_for(".box.chosen")
        assert selected(browser) == "Functional.layer_norm.1.forward"
        asked = [address.partition("?")[0].rpartition(":")[2].partition("/")[2] for address in browser.requested()]
        assert asked == ["", "data/index", "data/unit/1"]
        browser.find("[data-testid='unit'] option[value='2']").click()
        browser.until(lambda: "data/unit/2" in browser.requested()[-1], "the other graph is not asked for")
        assert browser.problems() == []
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        graphs.close()


@pytest.mark.slow
def test_fifty_thousand_nodes(browser, tmp_path):
    """As many as are asked for; how long it takes is measured by bench/view_page.py, on a quiet machine."""
    page = write_page(tmp_path / "large.html", comparison(Model(layers=781, fault=390)))
    browser.open(page)
    assert browser.run("return performance.now()") < 15_000
    browser.click("jump-1")
    browser.wait_for(".box.chosen")
    assert selected(browser) == "Functional.scaled_dot_product_attention.390.forward"
    assert browser.run("return document.querySelectorAll('*').length") < 3_000  # what is not seen is not there
    browser.search("layers.700.mlp.act_fn", Keys.ENTER)
    assert selected(browser).startswith("Module.model.layers.700.mlp.act_fn")
    assert browser.problems() == []


@pytest.mark.slow
def test_calls_without_modules_are_grouped(browser, tmp_path):
    browser.open(write_page(tmp_path / "flat.html", flat(20_000, odd=12_345)))
    browser.keys("2")
    browser.wait_for(".box")
    assert len(browser.run("return [...document.querySelectorAll('[role=treeitem]')].map((e) => e.dataset.name)")) < 130
    browser.keys("n")
    browser.wait_for(".box.chosen")
    assert selected(browser) == "Torch.op.12345.forward"
    assert len(browser.all(".panel .path .link")) == 2
    assert browser.problems() == []


def test_a_graph_that_cannot_be_read_is_told(browser, tmp_path):
    data = comparison(Model(layers=1, fault=None))
    del data["units"][0]["graph"]["edges"]
    browser.open(write_page(tmp_path / "odd.html", data))
    assert "cannot be read" in browser.wait_for("[role='alert']").text


@pytest.mark.skipif(
    not os.environ.get("MSPROBE_SCREENSHOTS"), reason="MSPROBE_SCREENSHOTS asks for new pictures of the documentation"
)
def test_screenshots(browser, pages, tmp_path):
    IMAGES.mkdir(exist_ok=True)

    def shoot(name):
        browser.still()
        (IMAGES / f"view-{name}.png").write_bytes(browser.driver.get_screenshot_as_png())

    browser.open(Path(os.environ["MSPROBE_SCREENSHOTS"]).absolute())
    shoot("summary")
    browser.click("jump-1")
    browser.wait_for(".panel .value")
    shoot("graph")
    browser.keys("s")
    browser.wait_for(".pane-golden .box")
    shoot("side-by-side")
    browser.open(pages["many"])
    browser.keys("3")
    browser.wait_for(".rank-node")
    shoot("overview")
    browser.open(write_page(tmp_path / "monitor.html", json.loads(encode_json(monitored_data(*MONITORS, Chosen())))))
    browser.click("show-trend")
    browser.wait_for("[data-testid='plot'] canvas")
    shoot("trends")
