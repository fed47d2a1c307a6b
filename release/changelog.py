"""Collect the sentences of ``changelog.d`` into ``CHANGELOG.md``, under a version, and remove their files.

python -m release.changelog VERSION [--date YYYY-MM-DD]

A file is ``<topic>.<added|changed|fixed|removed>.md`` and holds one sentence, or several in one line, for users. If the
version has a section already, what is new is put into that, so the command can be repeated until the release.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "removed": "Removed"}
HEAD = "# Changelog\n\nFor users. Unreleased changes are in `changelog.d/`, one sentence a file.\n"
_FRAGMENT = re.compile(rf"[\w-]+\.({'|'.join(KINDS)})\.md")
_ITEM = re.compile(r"^\* (.*(?:\n  .*)*)", re.MULTILINE)


def main() -> None:
    """Collect them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--date", type=dt.date.fromisoformat, default=dt.datetime.now(dt.timezone.utc).date())
    arguments = parser.parse_args()
    number = collect(ROOT, arguments.version, arguments.date)
    sys.stdout.write(f"{number} sentences collected into CHANGELOG.md, version {arguments.version}\n")


def collect(root: Path, version: str, date: dt.date) -> int:
    """Collect the sentences; returns how many there were.

    Raises:
        SystemExit: a file is misnamed or empty.
    """
    page, folder = root / "CHANGELOG.md", root / "changelog.d"
    files = sorted(path for path in folder.iterdir() if path.name != "README.md")
    items: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in files:
        found = _FRAGMENT.fullmatch(path.name)
        text = " ".join(path.read_text(encoding="utf-8").split())
        if found is None or not text:
            raise SystemExit(f"{path}: must be <topic>.<{'|'.join(KINDS)}>.md with one sentence")
        items[found[1]].append(text)
    sections = _sections(page.read_text(encoding="utf-8"))
    earlier = sections.pop(version, "")
    for kind, title in KINDS.items():
        kept = earlier.partition(f"### {title}\n")[2].partition("\n### ")[0]
        items[kind] = [*(" ".join(text.split()) for text in _ITEM.findall(kept)), *items[kind]]
    own = f"## {version} - {date}\n{_section(items)}"
    page.write_text("\n".join([HEAD, own, *(f"## {name}{text}" for name, text in sections.items())]), encoding="utf-8")
    for path in files:
        path.unlink()
    return len(files)


def _sections(text: str) -> dict[str, str]:
    """Return what follows the version in each section, by version, the newest first."""
    found = re.split(r"^## (\S+)", text, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def _section(items: Mapping[str, Sequence[str]]) -> str:
    return "".join(
        f"\n### {KINDS[kind]}\n\n" + "".join(f"* {text}\n" for text in dict.fromkeys(texts))
        for kind, texts in items.items()
        if texts
    )


if __name__ == "__main__":
    main()
