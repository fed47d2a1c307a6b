"""What the README shows is what happens: its script and commands run, and print what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = [
    REPOSITORY / "README.md",
    *sorted(REPOSITORY.glob("docs/*.md")),
    *sorted(REPOSITORY.glob("plugins/*/*.md")),
]
README = DOCUMENTS[0].read_text()


def block(language: str) -> str:
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))


def without_run(text: str) -> str:
    """Drop what differs between two runs: process ids, times and directories."""
    text = re.sub(r"proc\d+", "proc", text)
    text = re.sub(r"compare_result_\d{14}", "compare_result", text)
    return re.sub(r"File \S*/", "File ", text)


def test_the_example(tmp_path):
    (tmp_path / "train.py").write_text(block("python"))
    commands, shown = [], []
    for line in block("console").splitlines():
        (commands if line.startswith("$ ") else shown).append(line.removeprefix("$ "))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = [
        subprocess.run(command.split(), cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True)
        for command in commands
    ]
    assert [(run.returncode, run.stderr) for run in done] == [(0, ""), (0, ""), (1, ""), (1, "")]
    assert without_run("".join(run.stdout for run in done)).splitlines() == without_run("\n".join(shown)).splitlines()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_somewhere(document):
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()) if "://" not in link]
    missing = [link for link in links if not (document.parent / link.partition("#")[0]).exists()]
    assert missing == []
