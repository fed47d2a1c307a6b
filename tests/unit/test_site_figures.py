"""The page that helps to choose a tool quotes figures; they are those of the pages that measured them."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
QUOTED = {
    "performance.md": [
        r"small \| mix \| statistics \| 131\.2 \| 9\.04 .* \| 27\.0",
        r"small \| L0 \| statistics \| 39\.4 \| 2\.71 .* \| 5\.46",
        r"small \| mix \| md5 \| 162\.4 \| 11\.2 .* \| 48\.7",
        r"small \| . \| idle \| 15\.1 \| 1\.04 .* \| 1\.17",
        r"statistics to csv \| 1\.23 \| 1\.29 \| 246 \| 18\.6 \| 18\.3 \| 618",
        r"statistics to xlsx \| 2\.61 \| 2\.65 \| 381 \| 42\.4 \| 41\.1 \| 1106",
        r"large \| L0 \| statistics \| 961\.5 \| 1\.18",
        r"large \| mix \| statistics \| 1234\.0 \| 1\.52",
    ],
    "monitor.md": [r"all quantities, 4 operations \| 2\.4 \| 10\.9 "],
    "real_bugs.md": [
        r"held out \| other \| 22 \| 21 \(95 %\) \| .* \| 18 \(82 %\)",
        r"Called faulty by locate: 0 of 68",
    ],
    "locate.md": [
        r"report, bfloat16 \| 76 \| 65 \(86 %\) \| 59 \(78 %\)",
        r"report, float32 \| 46 \| 46 \(100 %\) \| 46 \(100 %\)",
    ],
}  # fmt: skip
"""What the page quotes, as patterns of the rows that it is from: who measures again, changes both."""


@pytest.mark.parametrize("page", QUOTED)
def test_figures_are_those_that_were_measured(page):
    text = (DOCS / page).read_text()
    assert [pattern for pattern in QUOTED[page] if not re.search(pattern, text)] == []
