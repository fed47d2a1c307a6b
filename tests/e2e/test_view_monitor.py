"""A monitored training on the page, in a real browser: maps, what is marked, lines, and a training that goes on."""

from __future__ import annotations

import math
import os
import re
import threading
from pathlib import Path

import pytest
from browser import CHROMIUM, DRIVER, Browser
from dumps import tensor, write_dump
from monitored_runs import Fault, Training, alarm, write_alarms
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.select import Select

from msprobe_core.compare.pairs import Chosen
from msprobe_core.view.build import build
from msprobe_core.view.page_file import units_that_fit, write_page
from msprobe_core.view.serve import PageServer
from msprobe_core.view.stored_graphs import StoredGraphs
from msprobe_core.view.trends_live import LiveMonitor

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("MSPROBE_REQUIRE_BROWSER"),
    reason="needs chromium and chromedriver (Debian: apt install chromium chromium-driver)",
)

WEIGHT, OUTPUT = "layers.2.mlp.up.weight", "layers.1.attn.output"
FAULTS = [
    Fault(2, "grad_reduced", WEIGHT, 50, 8.0),
    Fault(1, "actv", OUTPUT, 55, math.nan),
]
TRAINING = Training(ranks=4, layers=4, steps=60, micro_steps=2, faults=FAULTS)
HOSTILE = "<img src=x onerror='window.hacked=1'>"


@pytest.fixture(scope="module")
def browser():
    with Browser((1500, 1000)) as opened:
        yield opened


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("monitored")
    target = TRAINING.write(root / "target")
    write_alarms(
        target,
        2,
        alarm(2, "grad_reduced", WEIGHT, 50, 31.5),
        alarm(2, "grad_reduced", WEIGHT, 51, 31.25),
        alarm(2, "grad_reduced", HOSTILE, 52, "nan"),
    )
    write_dump(target / "dump" / "step50" / "rank2", small_dump())
    return target, Training(ranks=4, layers=4, steps=60, micro_steps=2).write(root / "golden")


def small_dump():
    return {"Torch.relu.0.forward": {"input_args": [tensor([1.0, 2.0])], "output": [tensor([1.0, 2.0])]}}


def page_of(path, target, golden=None):
    graphs = StoredGraphs()
    data = build(target, golden, graphs)
    write_page(data, graphs, path, units_that_fit(data, graphs))
    graphs.close()
    return path


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    root = tmp_path_factory.mktemp("pages")
    updated = with_updates(Training(ranks=2, layers=4, steps=60).write(root / "updated", ["grad_reduced"]))
    return {
        "one": page_of(root / "one.html", runs[0]),
        "two": page_of(root / "two.html", *runs),
        "updates": page_of(root / "updates.html", updated),
    }


def with_updates(root):
    """Add how far each step moves the parameters: rank 1 moves one of them ten times as far from step 50 on."""
    for rank, place in enumerate(sorted(root.iterdir())):
        lines = ["vpp_stage,name,step,norm,norm_debiased,ratio,ratio_debiased,unchanged,shape,dtype"]
        for step in range(60):
            for name in TRAINING.names("grad_reduced"):
                ratio = 1e-3 * (10 if (rank, name) == (1, WEIGHT) and step >= 50 else 1)
                lines.append(f'0,{name},{step},{30 * ratio:.6f},nan,{ratio:.6f},nan,0.25,"[8, 4]",torch.bfloat16')
        (place / "update_0-59.csv").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def monitor(browser, pages):
    """Opens a page at its monitor; at the end nothing must have gone wrong."""

    def go(name):
        browser.open(pages[name])
        browser.click("show-monitor")
        browser.wait_for("[data-testid='monitor-map'] canvas")
        browser.frame()
        return browser

    yield go
    assert browser.problems() == []


def cell_at(browser, row, column):
    """Return a cell's place on the page; it is scrolled to."""
    element = browser.find("[data-testid='monitor-map']")
    left, top, width, height = (int(number) for number in element.get_attribute("data-cell").split(","))
    box = element.rect
    x, y = left + (column + 0.5) * width, top + (row + 0.5) * height
    return element, round(x - box["width"] / 2), round(y - box["height"] / 2)


def hovered(browser, row, column):
    element, x, y = cell_at(browser, row, column)
    ActionChains(browser.driver).move_to_element_with_offset(element, x, y).perform()
    return browser.wait_for(".tip").text.splitlines()


def colour_of(browser, row, column):
    """Return the colour that a cell is painted in, beside the dot in its middle."""
    return browser.run(
        """
        const [host, row, column] = arguments, [left, top, width, height] = host.dataset.cell.split(",").map(Number);
        const pen = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        pen.drawImage(host.querySelector("canvas"), -(left + column * width + 2), -(top + row * height + 2));
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3)""",
        browser.find("[data-testid='monitor-map']"),
        row,
        column,
    )


def numbers(text):
    return [float(each) for each in re.findall(r"[\d.]+", text)]


def choose(browser, testid, value):
    Select(browser.find(f"[data-testid='{testid}']")).select_by_value(str(value))
    browser.frame()


ROW = TRAINING.names("grad_reduced").index(WEIGHT)
NAN_ROW = TRAINING.names("actv").index(OUTPUT)


class TestMap:
    def test_begins_with_what_is_unusual(self, monitor):
        browser = monitor("one")
        assert Select(browser.find("[data-testid='quantity']")).first_selected_option.text == (
            "grad_reduced – gradients after reduction"  # noqa: RUF001 - as on the page
        )
        first = browser.text(".event.first")
        assert first.startswith("Anomaly step 50 · rank 2")
        assert WEIGHT in first
        assert re.search(r"norm is [\d.]+, usually [\d.]+: [\d.]+ usual deviations", first)
        assert browser.text("[data-testid='line-card'] h2") == f"{WEIGHT} grad_reduced · norm"
        assert browser.find("[data-testid='lines']").get_attribute("data-rank") == "2"

    def test_pointing_at_a_cell_says_value_and_usual(self, monitor):
        browser = monitor("one")
        name, where, value, usual = hovered(browser, ROW, 50)
        assert name == f"{WEIGHT} · grad_reduced"
        assert where == "step 50 · rank 2"
        number = float(value.removeprefix("norm "))
        match = re.fullmatch(r"usual ([\d.]+) \(([\d.]+) × usual\)", usual)  # noqa: RUF001 - as on the page
        assert number / float(match[1]) == pytest.approx(float(match[2]), rel=0.01)
        assert 5 < float(match[2]) < 9  # multiplied by 8, on a value that falls

    def test_outliers_and_what_is_not_finite_have_colours_of_their_own(self, monitor):
        browser = monitor("one")
        outlier, calm = (colour_of(browser, ROW, column) for column in (52, 40))
        assert outlier[0] > outlier[2] + 80  # red
        assert max(calm) - min(calm) < 60  # near the middle of the scale
        choose(browser, "quantity", "actv")
        assert colour_of(browser, NAN_ROW, 57) == [150, 30, 160]
        assert colour_of(browser, NAN_ROW, 50) != [150, 30, 160]
        assert "norm nan" in hovered(browser, NAN_ROW, 57)

    def test_shows_how_far_updates_move_each_parameter(self, monitor):
        browser = monitor("updates")
        choose(browser, "quantity", "update")
        browser.find(".monitor-tools [data-value='ratio']").click()
        browser.frame()
        name, where, *values = hovered(browser, ROW, 52)
        assert (name, where) == (f"{WEIGHT} · update", "step 52 · rank 1")
        assert values[:2] == ["ratio 0.01", "usual 0.001 (10 × usual)"]  # noqa: RUF001 - as on the page
        outlier, calm = (colour_of(browser, ROW, column) for column in (52, 40))
        assert outlier[0] > outlier[2] + 80  # red
        assert max(calm) - min(calm) < 60

    @pytest.mark.slow
    def test_layers_are_in_the_order_of_the_model(self, monitor):
        browser = monitor("one")
        names = [hovered(browser, row, 3)[0].partition(" ")[0] for row in (0, 1, 2, 3, 9)]
        expected = TRAINING.names("grad_reduced")
        assert names == [expected[row] for row in (0, 1, 2, 3, 9)]

    @pytest.mark.slow
    def test_a_rank_alone_is_as_in_the_worst_of_all(self, monitor):
        """The page finds out what is usual from the lines of single ranks, as Python does from the files."""
        browser = monitor("one")
        worst = hovered(browser, ROW, 50)
        choose(browser, "rank", 2)
        alone = hovered(browser, ROW, 50)
        assert alone[:2] == worst[:2]
        for own, other in zip(alone[2:], worst[2:], strict=True):
            assert numbers(own) == pytest.approx(numbers(other), rel=1e-4)
        choose(browser, "rank", 3)
        assert hovered(browser, ROW, 50)[1] == "step 50 · rank 3"

    @pytest.mark.slow
    def test_ranks_and_steps_of_one_layer_and_layers_and_ranks_of_one_step(self, monitor):
        browser = monitor("one")
        browser.find("[data-value='ranks']").click()
        browser.frame()
        assert hovered(browser, 2, 50)[:2] == [f"{WEIGHT} · grad_reduced", "step 50 · rank 2"]
        assert colour_of(browser, 2, 52)[0] > colour_of(browser, 2, 52)[2] + 80
        assert max(colour_of(browser, 1, 52)) - min(colour_of(browser, 1, 52)) < 60
        browser.find("[data-value='step']").click()
        browser.frame()
        assert Select(browser.find("[data-testid='of-step']")).first_selected_option.text == "50"
        assert hovered(browser, ROW, 2)[1] == "step 50 · rank 2"
        choose(browser, "of-step", 10)
        assert hovered(browser, ROW, 3)[1] == "step 10 · rank 3"

    @pytest.mark.slow
    def test_micro_steps(self, monitor):
        browser = monitor("one")
        choose(browser, "quantity", "actv")
        for micro in (0, 1):
            choose(browser, "micro", micro)
            assert hovered(browser, NAN_ROW, 20)[1].endswith(f"· Micro step {micro}")

    def test_a_click_draws_the_lines_of_all_ranks(self, monitor):
        browser = monitor("one")
        choose(browser, "quantity", "actv")
        element, x, y = cell_at(browser, NAN_ROW, 57)
        ActionChains(browser.driver).move_to_element_with_offset(element, x, y).click().perform()
        browser.frame()
        assert browser.text("[data-testid='line-card'] h2").startswith(f"{OUTPUT} actv · norm · Micro step ")
        lines = browser.find("[data-testid='lines']")
        assert (lines.get_attribute("data-rank"), lines.get_attribute("data-lines")) == ("1", "4")
        labels = [label for label in browser.texts("[data-testid='lines'] .u-label") if label]
        assert labels == ["step", "rank 0", "rank 2", "rank 3", "rank 1", "usual"]

    def test_magnitudes_and_scales(self, monitor):
        browser = monitor("one")
        before = colour_of(browser, ROW, 52)
        browser.find("[data-value='value']").click()
        browser.frame()
        assert colour_of(browser, ROW, 52) != before
        assert "×" not in browser.text(".map-foot")  # noqa: RUF001 - as on the page

    def test_keys_move_in_the_map(self, monitor):
        browser = monitor("one")
        grid = browser.find("[data-testid='monitor-map']")
        grid.send_keys("\ue015")  # down: the first cell
        grid.send_keys("\ue015")
        grid.send_keys("\ue007")  # Enter
        browser.frame()
        assert TRAINING.names("grad_reduced")[1] in browser.text("[data-testid='line-card'] h2")


class TestEvents:
    def test_a_click_jumps_to_the_cell(self, monitor):
        browser = monitor("one")
        nan = next(each for each in browser.all(".event[data-kind='anomaly']") if OUTPUT in each.text)
        assert "norm is nan, and was finite before" in nan.text
        nan.find_element("css selector", "button").click()
        browser.frame()
        assert browser.find("[data-testid='quantity']").get_attribute("value") == "actv"
        assert browser.text("[data-testid='line-card'] h2").startswith(OUTPUT)
        assert browser.find("[data-testid='lines']").get_attribute("data-rank") == "1"
        assert "listed on the right" in browser.text(".map-foot")

    def test_alarms_name_the_dump_beside_the_files(self, monitor, runs):
        browser = monitor("one")
        assert "alarms while the training ran: 3" in browser.text("[data-testid='events']")
        (of_weight, of_unknown) = browser.all(".event[data-kind='alarm']")
        assert of_weight.text.startswith("Alarm step 50 · rank 2 · 2 times")
        assert "AnomalyTurbulence holds: norm is 31.5" in of_weight.text
        assert f"msprobe view {runs[0]}/dump/step50" in of_weight.text
        assert "norm is nan" in of_unknown.text
        assert browser.run("return [document.images.length, window.hacked ?? null]") == [0, None]

    @pytest.mark.slow
    def test_alarms_open_the_dump_that_the_page_holds(self, browser, tmp_path):
        TRAINING.write(tmp_path / "run" / "monitor_output")
        write_dump(tmp_path / "run" / "step50" / "rank2", small_dump())
        browser.open(page_of(tmp_path / "page.html", tmp_path / "run"))
        browser.find("#tab-monitor").click()
        browser.wait_for("[data-testid='open-dump']").click()
        browser.wait_for(".box")
        assert browser.find("#tab-graph").get_attribute("aria-selected") == "true"
        assert "relu" in browser.text(".outline")
        assert browser.problems() == []

    @pytest.mark.slow
    def test_a_training_with_nothing_unusual_says_so(self, browser, tmp_path, runs):
        browser.open(page_of(tmp_path / "page.html", runs[1]))
        browser.click("show-monitor")
        assert re.search(r"Nothing unusual in [\d,]+ judged values", browser.text("[data-testid='events']"))
        short = Training(ranks=1, layers=1, steps=5).write(tmp_path / "short")
        browser.open(page_of(tmp_path / "page.html", short))
        browser.click("show-monitor")
        assert "anomalies need more than 20 steps" in browser.text("[data-testid='events']")
        assert browser.all("[data-testid='rank']") == []  # there is one
        assert browser.problems() == []

    def test_coverage(self, monitor):
        browser = monitor("one")
        rows = [row.split() for row in browser.texts("[data-testid='coverage'] tbody tr:not(.missing)")]
        assert browser.text("[data-testid='coverage'] thead").split() == [
            "Quantity", "expected", "seen", "finite", "first", "step",
        ]  # fmt: skip
        # Of 4 ranks: 10 names, of which one turns into NaN.
        assert rows == [["actv–40390"], ["grad_reduced4440400"]]  # noqa: RUF001 - as on the page
        assert browser.text("[data-testid='coverage'] .missing") == "never seen: lm_head.bias"


class TestTwo:
    def test_the_difference_and_where_it_begins(self, monitor):
        browser = monitor("two")
        first = browser.text(".event.first")
        assert first.startswith("The runs diverge step 50 · rank 2")
        assert f"The runs first diverge in step 50, rank 2 at {WEIGHT} (grad_reduced)" in first
        hover = hovered(browser, ROW, 50)
        golden = next(line for line in hover if line.startswith("Golden"))
        assert re.fullmatch(r"Golden [\d.]+ \(700 % off\)", golden)
        right, wrong = (colour_of(browser, ROW, column) for column in (49, 50))
        assert right[2] > right[0]  # blue: equal
        assert wrong[0] > wrong[2] + 80
        assert colour_of(browser, ROW - 1, 50) == right
        labels = browser.texts("[data-testid='lines'] .u-label")
        assert "Golden" in labels

    def test_chinese(self, monitor):
        browser = monitor("two")
        browser.click("language")
        try:
            browser.frame()
            text = browser.text(".monitor")
            for said in (
                "值得查看之处",
                "两次运行出现分歧",
                "覆盖情况",
                "与标杆相比",
                "规约后的梯度",
                "4 个 rank 中最差",
            ):
                assert said in text, said
            assert "What" not in text
        finally:
            browser.click("language")

    def test_dark(self, monitor):
        browser = monitor("two")
        light = colour_of(browser, ROW, 49)
        browser.click("theme")
        try:
            browser.frame()
            assert sum(colour_of(browser, ROW, 49)) < sum(light) - 200
        finally:
            browser.click("theme")

    def test_a_narrow_window_cuts_nothing(self, monitor):
        browser = monitor("two")
        size = {"width": 760, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            browser.frame()
            assert browser.run("return document.documentElement.scrollWidth") == 760
            cards = [each.rect for each in browser.all(".monitor .card")]
            assert all(card["x"] + card["width"] <= 760 for card in cards)
        finally:
            browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_what_the_page_has_no_room_for_is_said(browser, runs, tmp_path, monkeypatch):
    monkeypatch.setattr("msprobe_core.view.trends.MAX_NUMBERS", 3000)
    browser.open(page_of(tmp_path / "page.html", runs[0]))
    browser.click("show-monitor")
    notes = browser.text("[data-testid='monitor-notes']")
    found = re.search(
        r"of (\d+) of 30 values, the lines of single ranks have (\d+) of 60 steps; --serve shows all", notes
    )
    assert found is not None, notes
    assert 0 < int(found[1]) <= 30
    assert 0 < int(found[2]) < 60
    choose(browser, "quantity", "actv")
    choose(browser, "rank", 0)
    told = f"{found[2]} of 60 steps are in the page; msprobe view --serve shows all."
    assert told in browser.text(".monitor-main")
    browser.find("[data-value='nans']").click()  # the lines are of norms only
    browser.frame()
    assert "Shown is the rank furthest from usual in each step" in browser.text("[data-testid='no-lines']")
    assert browser.problems() == []


@pytest.mark.slow
def test_a_training_that_goes_on(browser, tmp_path):
    """The page asks for what is new, and for exact lines when they are looked at."""
    faults = [Fault(1, "grad_reduced", "layers.1.mlp.up.weight", 50, 9.0)]
    training = Training(ranks=2, layers=2, steps=60, faults=faults)
    Training(ranks=2, layers=2, steps=20).write(tmp_path, ["grad_reduced"])
    live = LiveMonitor(tmp_path, None, Chosen())
    graphs = StoredGraphs()
    server = PageServer(live.data, graphs, live=live)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        browser.open(server.url)
        browser.click("show-monitor")
        browser.wait_for("[data-testid='lines'] canvas")
        assert "live: step 19, updated" in browser.text("[data-testid='live']")
        assert browser.find("[data-testid='lines']").get_attribute("data-lines") == "2"
        shown = browser.text("[data-testid='line-card'] h2")
        assert shown == "embed.weight grad_reduced · norm"
        training.write(tmp_path, first=20)  # with activations, which come first
        browser.until(lambda: "live: step 59" in browser.text("[data-testid='live']"), "new files are not shown")
        assert browser.text("[data-testid='line-card'] h2") == shown
        event = browser.wait_for(".event.first")
        assert "step 50 · rank 1" in event.text
        event.find_element("css selector", "button").click()
        browser.until(
            lambda: browser.text("[data-testid='line-card'] h2").startswith("layers.1.mlp.up.weight"), "no jump"
        )
        choose(browser, "rank", 1)
        browser.wait_for("[data-testid='monitor-map'] canvas")
        row = training.names("grad_reduced").index("layers.1.mlp.up.weight")
        browser.until(lambda: hovered(browser, row, 50)[1] == "step 50 · rank 1", "the rank is not shown")
        asked = {re.sub(r"\?.*", "", each.partition("/data/")[2]) for each in browser.requested()}
        assert {"index", "monitor/rank/1/norm/grad_reduced"} <= asked
        assert any(each.startswith("monitor/row/") for each in asked)
        assert browser.problems() == []
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        graphs.close()


@pytest.mark.skipif(
    not os.environ.get("MSPROBE_SCREENSHOTS"), reason="MSPROBE_SCREENSHOTS asks for new pictures of the documentation"
)
def test_screenshot(browser, tmp_path):
    target = Training(ranks=8, layers=8, steps=60, micro_steps=2, faults=FAULTS).write(tmp_path / "monitor_output")
    write_alarms(target, 2, alarm(2, "grad_reduced", WEIGHT, 50, 31.5))
    browser.open(page_of(tmp_path / "page.html", target))
    browser.click("show-monitor")
    browser.wait_for("[data-testid='lines'] canvas")
    browser.still()
    picture = Path(__file__).parents[2] / "docs" / "images" / "view-monitor.png"
    picture.write_bytes(browser.driver.get_screenshot_as_png())
