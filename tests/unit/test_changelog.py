"""Sentences of changes are collected under a version, once each, and misnamed files are refused."""

import datetime as dt
import re
from pathlib import Path

import pytest

from release.changelog import KINDS, collect

REPOSITORY = Path(__file__).parents[2]
DAY = dt.date(2027, 1, 2)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "README.md").write_text("stays")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.0.9 - 2026-01-01\n\n### Fixed\n\n* Old.\n")
    return tmp_path


def change(root, name, text):
    (root / "changelog.d" / name).write_text(text)


def test_sentences_are_collected_by_kind_and_again_until_the_release(root):
    change(root, "b.fixed.md", "B is right.\n")
    change(root, "a.added.md", "A is new,\nand good.\n")
    assert collect(root, "0.1.0", DAY) == 2
    change(root, "c.fixed.md", "C is right.\n")
    assert collect(root, "0.1.0", DAY) == 1
    text = (root / "CHANGELOG.md").read_text()
    assert text.partition("## ")[2] == (
        "0.1.0 - 2027-01-02\n\n### Added\n\n* A is new, and good.\n\n### Fixed\n\n* B is right.\n* C is right.\n\n"
        "## 0.0.9 - 2026-01-01\n\n### Fixed\n\n* Old.\n"
    )
    assert [path.name for path in (root / "changelog.d").iterdir()] == ["README.md"]


@pytest.mark.parametrize(("name", "text"), [("a.new.md", "A."), ("notes.txt", "A."), ("a.added.md", " \n")])
def test_a_file_that_is_none_is_named(root, name, text):
    change(root, name, text)
    with pytest.raises(SystemExit, match=re.escape(name)):
        collect(root, "0.1.0", DAY)
    assert (root / "changelog.d" / name).exists()


def test_the_changes_of_this_repository_can_be_collected():
    for path in (REPOSITORY / "changelog.d").iterdir():
        if path.name != "README.md":
            assert re.fullmatch(rf"[\w-]+\.({'|'.join(KINDS)})\.md", path.name), path.name
            assert path.read_text().strip(), path.name
