"""What SECURITY.md names as its tests is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_tests_that_exist():
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promises = page.partition("## What is promised")[2].partition("\n## ")[0].split("\n| **")[1:]
    assert len(promises) >= 10
    for promise in promises:
        assert re.findall(r"`tests/\S+\.py`", promise), promise
    named = set(re.findall(r"`((?:tests|bench)/\S+\.py)`", page))
    assert [name for name in named if not (ROOT / name).is_file()] == []
