"""`make site` builds the documentation without a warning, and one reads and searches it without a network."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from browser import CHROMIUM, DRIVER, Browser

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-docs" / "bin" / "python"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site in English, with the Chinese one inside, built into an empty directory."""
    assert PYTHON.exists(), "make .venv-docs/.ready"
    place = tmp_path_factory.mktemp("site")
    for config, target in (("mkdocs.yml", place), ("mkdocs.zh.yml", place / "zh")):
        command = [PYTHON, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", config, "-d", target]
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        build = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=environment)
        assert build.returncode == 0, build.stderr
    return place


@pytest.mark.slow
def test_every_page_is_in_both_sites_and_leads_to_the_other(site):
    pages = {
        str(page.relative_to(REPOSITORY / "docs").with_suffix(".html")) for page in (REPOSITORY / "docs").rglob("*.md")
    }
    for page in pages - {page for page in pages if page.startswith("zh/")}:
        up = "../" * page.count("/")
        assert f'href="{up}zh/{page}" hreflang="zh"' in (site / page).read_text()
        assert f'href="{up}../{page}" hreflang="en"' in (site / "zh" / page).read_text()


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]* src=\"?([^\" >]+)|<link[^>]* href=\"?([^\" >]+)", page.read_text()
        )
        assert [one for pair in loaded for one in pair if one.startswith(("http:", "https:", "//"))] == []


@pytest.mark.slow
@pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("MSPROBE_REQUIRE_BROWSER"),
    reason="needs chromium and chromedriver",
)
@pytest.mark.parametrize(
    ("folder", "words", "found"),
    [(".", "flight recorder", "NaN and Inf"), ("zh", "激活函数", "教程")],
    ids=["English", "Chinese"],
)
def test_one_searches_in_a_page_that_was_opened_as_a_file(site, folder, words, found):
    with Browser() as browser:
        browser.driver.get((site / folder / "index.html").as_uri())
        browser.run("document.querySelector('[for=__search]').click()")
        browser.until(lambda: browser.find("input.md-search__input").is_displayed(), "there is no search")
        browser.find("input.md-search__input").send_keys(words)
        browser.until(lambda: found in browser.texts(".md-search-result__item h1"), f"{words} does not lead to {found}")
