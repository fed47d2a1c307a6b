"""Prose of the rooms that are listed as plain English: no phrase that makes a reader stumble.

`make lint` checks single words with codespell (tests/data/prose/words.txt); phrases are checked here, because codespell
knows words only. Code is not prose: of Python files the comments and docstrings are read, of pages what is not code.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PROSE = REPOSITORY / "tests" / "data" / "prose"

PHRASES = {
    r"by turns": "alternately",
    r"takes? note (that|of)": "record, or name what happens",
    r"of such as": "name the thing",
    r"(is|are) told": "is reported",
    r"(is|are) another[,.;:)]": "differs",
    r"part (first|from|there)\b": "diverge",
    r"what is \w+ when": "say what happens in which order",
    r"(how|as) manieth": "index",
    r"stands? (before|after|in|at|for nothing)\b": "is, comes, or precedes",
    r"is (said|told) (so|of)\b": "is reported",
    r"as ever\b": "as usual",
}
"""Phrases that are not plain English, as patterns in lower case, each with what to write instead."""


def rooms() -> list[Path]:
    lines = (PROSE / "rooms.txt").read_text().splitlines()
    paths = [REPOSITORY / line for line in lines if line and not line.startswith("#")]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    assert all(path.exists() for path in paths), "rooms.txt names a path that is gone"
    return files


def prose_of_python(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    statements = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    docstrings = [node.value for node in statements if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [*comments, *docstrings]


def prose_of_page(text: str) -> list[str]:
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"\n\s*\n", re.sub(r"`[^`]*`", "", outside))


def found_in(passages: list[str]) -> list[str]:
    plain = [re.sub(r"\s+", " ", passage) for passage in passages]
    return [
        f"{match.group()!r}: say {better!r}"
        for passage in plain
        for pattern, better in PHRASES.items()
        for match in re.finditer(rf"\b{pattern}", passage, re.IGNORECASE)
    ]


@pytest.mark.parametrize("file", rooms(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_prose_has_no_such_phrase(file):
    text = file.read_text()
    assert found_in(prose_of_python(text) if file.suffix == ".py" else prose_of_page(text)) == []


def test_comments_docstrings_and_pages_are_read_and_code_is_not():
    source = '"""Bare and recorded,\nby turns."""\nX = "by turns"  # by turns\n'
    page = "Which is told.\n\n```text\nby turns\n```\n\n`by turns` and by\nturns\n"
    assert len(found_in(prose_of_python(source))) == 2
    assert len(found_in(prose_of_page(page))) == 2
