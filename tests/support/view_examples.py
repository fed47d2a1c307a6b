"""Make the example files of pages' data from a real training of two processes.

    python view_examples.py DIRECTORY

records ``DIRECTORY/run`` if it is not there, and writes ``tests/data/view/dump.json.gz`` and ``comparison.json.gz``.
"""

import gzip
import re
import sys
from pathlib import Path

import view_training
from jobs import run_job

from msprobe_core.view.build import build
from msprobe_core.view.page_file import document
from msprobe_core.view.stored_graphs import StoredGraphs

PLACE = Path(__file__).parents[1] / "data" / "view"
REPOSITORY = str(Path(__file__).parents[2])


def neutral(text: str, run: Path) -> str:
    """Return the text without what is only true on this machine."""
    text = text.replace(str(run), "run").replace(f"{REPOSITORY}/", "")
    text = re.sub(r"/[^\s\"]*?/(lib/python3)", r"\1", text)
    return re.sub(r'"at":"[^"]*"', '"at":"2026-11-21T12:00:00+00:00"', text)


def main() -> None:
    directory = Path(sys.argv[1]).absolute()
    run = directory / "run"
    if not run.exists():
        run_job(view_training.record, 2, run, "tensor")
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, target, golden in (
        ("dump", run / "golden", None),
        ("comparison", run / "target", run / "golden"),
    ):
        graphs = StoredGraphs()
        data = build(target, golden, graphs)
        text = b"".join(document(data, graphs, range(len(data.units)))).decode()
        graphs.close()
        content = neutral(text, run).encode()
        (PLACE / f"{name}.json.gz").write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    main()
