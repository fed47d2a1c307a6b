"""The configurations of two runs on the page, in a real browser, and that of a single run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, DRIVER, Browser
from dumps import api, tensor, write_dump
from manifests import manifest, model_of, write_beside

from msprobe_core.view.build import build
from msprobe_core.view.page_file import units_that_fit, write_page
from msprobe_core.view.stored_graphs import StoredGraphs

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("MSPROBE_REQUIRE_BROWSER"),
    reason="needs chromium and chromedriver (Debian: apt install chromium chromium-driver)",
)

HOSTILE = "<img src=x onerror='window.hacked=1'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser((1500, 1000)) as opened:
        yield opened


def write_run(root: Path, *, eps: float, lr: float = 1e-3, port: str = "1", has_manifest: bool = True) -> Path:
    """Write a run of one normalisation whose result depends on its epsilon."""
    unit = root / "step0" / "rank0"
    entry, module = "Functional.layer_norm.0.forward", "Module.head.norm.LayerNorm.forward.0"
    made = tensor([1.0 + eps, 2.0])
    given = api(tensor([1.0, 2.0]), {"type": "float", "value": eps}, output=made)
    parents = {entry: module, module: None}
    write_dump(unit, {entry: given, module: api(tensor([1.0, 2.0]), output=made)}, parents=parents)
    if has_manifest:
        model = model_of(("head.norm", "torch.nn.LayerNorm", {"eps": eps}))
        environment = {"MASTER_PORT": port, "NCCL_NOTE": HOSTILE if eps > 1e-3 else "plain"}
        write_beside(unit, manifest(models=(model,), lr=lr, environment=environment))
    return root


def page_of(path: Path, target: Path, golden: Path | None = None) -> Path:
    graphs = StoredGraphs()
    data = build(target, golden, graphs)
    write_page(data, graphs, path, units_that_fit(data, graphs))
    graphs.close()
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("configured")
    target = write_run(root / "target", eps=0.1, lr=1e-4, port="2")
    golden = write_run(root / "golden", eps=1e-5)
    return page_of(root / "page.html", target, golden)


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    """Opens the tab; at the end nothing must have gone wrong."""
    browser.open(page)
    browser.wait_for("#tab-configuration")
    browser.find("#tab-configuration").click()
    yield browser
    assert browser.problems() == []
    assert not browser.run("return window.hacked")


def paths(browser: Browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('[data-path]')].map((row) => row.dataset.path)")


def test_what_explains_the_fault_comes_first(opened: Browser) -> None:
    assert opened.text('[data-testid="config-headline"]') == "3 settings differ that can change results"
    assert paths(opened)[0] == "head.norm.eps"
    first = opened.text('[data-path="head.norm.eps"]')
    for said in ("explains it", "head.norm, where the fault is", "0.1", "1e-05", "model"):
        assert said in first
    degrees = opened.run("return [...document.querySelectorAll('[data-path]')].map((row) => row.dataset.explains)")
    assert sorted(degrees, key=["yes", "maybe", "no"].index) == degrees


def test_sections_have_a_state_and_filter(opened: Browser) -> None:
    states = opened.run(
        "return Object.fromEntries([...document.querySelectorAll('[data-section]')]"
        ".map((chip) => [chip.dataset.section, chip.dataset.state]))"
    )
    assert states["framework"] == "pass"
    assert states["model"] == "error"
    assert states["optimizer"] == "error"
    opened.find('[data-section="optimizer"]').click()
    assert [path.rpartition(".")[2] for path in paths(opened)] == ["lr"]
    assert opened.find('[data-section="framework"]').get_attribute("disabled")


def test_what_changes_no_result_is_shown_on_demand(opened: Browser) -> None:
    assert "MASTER_PORT" not in paths(opened)
    opened.find('[data-testid="harmless"]').click()
    assert paths(opened)[-1] == "MASTER_PORT"
    assert "changes no result" in opened.text('[data-path="MASTER_PORT"]')


def test_values_are_text(opened: Browser) -> None:
    assert HOSTILE in opened.text('[data-path="NCCL_NOTE"]')


def test_chinese(opened: Browser) -> None:
    opened.find('[data-testid="language"]').click()
    assert opened.text('[data-testid="config-headline"]') == "3 项可能影响结果的设置不同"
    assert "可以解释" in opened.text('[data-path="head.norm.eps"]')
    assert "问题所在模块 head.norm 的设置" in opened.text('[data-path="head.norm.eps"]')


def test_the_summary_says_so_first_and_leads_to_it(opened: Browser) -> None:
    opened.find("#tab-summary").click()
    assert opened.texts(".detail")[0].startswith("The runs were configured differently: head.norm.eps: 0.1 / 1e-05")
    opened.find('[data-testid="show-configuration"]').click()
    assert opened.find("#tab-configuration").get_attribute("aria-selected") == "true"


def test_runs_without_manifests_have_no_such_tab(browser: Browser, tmp_path: Path) -> None:
    target = write_run(tmp_path / "target", eps=0.1, has_manifest=False)
    golden = write_run(tmp_path / "golden", eps=1e-5, has_manifest=False)
    browser.open(page_of(tmp_path / "page.html", target, golden))
    browser.wait_for("#tab-summary")
    assert "Configuration" not in browser.texts('[role="tab"]')
    assert '"manifest": true' in browser.text(".checks")
    assert browser.problems() == []


def test_of_a_single_run_the_manifest_is_shown(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path / "page.html", write_run(tmp_path / "run", eps=0.1)))
    browser.wait_for("#tab-summary")
    browser.find("#tab-summary").click()
    assert "torch 2.13.0" in browser.text('[data-fact="framework"]')
    assert "lr=0.001" in browser.text('[data-fact="optimizers"]')
    assert HOSTILE in browser.text('[data-fact="environment"]')
    assert browser.problems() == []
    assert not browser.run("return window.hacked")
