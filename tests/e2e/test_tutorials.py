"""The tutorials are what happens: each page is followed literally, and its first verdict comes soon."""

import subprocess
import sys
from pathlib import Path

import pytest
from tutorial import MOST_COMMANDS, MOST_S, MOST_WORDS, PAGES, Command, follow, missing, steps


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md") if path.name != "index.md"))
def test_the_first_verdict_is_near(page):
    verdict = next(
        step for step in steps((PAGES / page).read_text()) if isinstance(step, Command) and step.gives_verdict
    )
    assert verdict.number <= MOST_COMMANDS
    assert verdict.num_words <= MOST_WORDS


def test_what_a_page_shows_is_looked_for():
    printed = ["a 1.5", "b", "c in File /x/y.py", "d"]
    assert missing(["a 2.5", "…", "c in File y.py", "…"], printed) == []
    assert missing(["a 1.5", "c in File y.py", "…"], printed) == ["c in File y.py"]
    assert missing(["…", "c…", "b", "…"], printed) == ["b"]
    assert missing(["a 1.5", "b"], printed) == ["unshown: c in File /x/y.py"]


@pytest.mark.slow
def test_first_fault(tmp_path):
    assert follow("first_fault.md", tmp_path)["seconds"] < MOST_S


@pytest.mark.slow
def test_nan_on_ranks(tmp_path, torch_python):
    """Its nine processes are forked off one that has imported PyTorch."""
    assert follow("nan_on_ranks.md", tmp_path, Path(torch_python).parent)["seconds"] < MOST_S


@pytest.mark.slow
def test_first_plugin(tmp_path):
    """In an environment of its own, which sees what is installed here, and builds with the hatchling that it sees."""
    programs = tmp_path / "environment" / "bin"
    subprocess.run([sys.executable, "-m", "venv", programs.parent], check=True)
    (site,) = programs.parent.glob("lib/python*/site-packages")
    (site / "outer.pth").write_text("\n".join(filter(None, sys.path)))
    (programs / "msprobe").write_text(f"#!{programs}/python\nfrom msprobe_core.cli import main\nmain()\n")
    (programs / "msprobe").chmod(0o755)
    (tmp_path / "work").mkdir()
    isolated = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_CACHE_DIR": str(tmp_path / "cache")}
    assert follow("first_plugin.md", tmp_path / "work", programs, **isolated)["seconds"] < MOST_S
