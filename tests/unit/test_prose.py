"""Prose of the rooms that are listed as plain English: no phrase that makes a reader stumble.

`make lint` checks single words with codespell (tests/data/prose/words.txt); phrases are checked here, because codespell
knows words only. Code is not prose: of Python files the comments and docstrings are read, of TypeScript the comments,
and of pages what is not code.
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
    r"stands? (before|after|in|at|for nothing)\b": "is, comes, or precedes",
    r"is (said|told) (so|of)\b": "is reported",
    r"as ever\b": "as usual",
}
"""Phrases that are not plain English, as patterns in lower case, each with what to write instead."""


ROOMS = [line for line in (PROSE / "rooms.txt").read_text().splitlines() if not line.startswith("#")]


def files_of(room: Path) -> list[Path]:
    files = [room] if room.is_file() else sorted(file for file in room.rglob("*") if file.is_file())
    return [file for file in files if file.suffix in READERS]


def prose_of_python(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    statements = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    docstrings = [node.value for node in statements if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [*comments, *docstrings]


def prose_of_page(text: str) -> list[str]:
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"\n\s*\n", re.sub(r"`[^`]*`", "", outside))


def prose_of_typescript(source: str) -> list[str]:
    return re.findall(r"/\*.*?\*/|(?<!:)//[^\n]*", source, re.DOTALL)


READERS = {
    ".py": prose_of_python,
    ".md": prose_of_page,
    "": prose_of_page,
    ".ts": prose_of_typescript,
    ".tsx": prose_of_typescript,
}
"""What takes the prose out of a file, by its suffix; scripts of .ci and the Makefile have none."""


def found_in(passages: list[str]) -> list[str]:
    plain = [re.sub(r"\s+", " ", passage) for passage in passages]
    return [
        f"{match.group()!r}: say {better!r}"
        for passage in plain
        for pattern, better in PHRASES.items()
        for match in re.finditer(rf"\b{pattern}", passage, re.IGNORECASE)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_prose_has_no_such_phrase(room):
    files = files_of(REPOSITORY / room)
    found = {str(file.relative_to(REPOSITORY)): found_in(READERS[file.suffix](file.read_text())) for file in files}
    assert files, "rooms.txt names what is gone"
    assert {file: phrases for file, phrases in found.items() if phrases} == {}


def test_comments_docstrings_and_pages_are_read_and_code_is_not():
    source = '"""Bare and recorded,\nby turns."""\nX = "by turns"  # by turns\n'
    page = "Which is told.\n\n```text\nby turns\n```\n\n`by turns` and by\nturns\n"
    assert len(found_in(prose_of_python(source))) == 2
    assert len(found_in(prose_of_page(page))) == 2
    script = '/** Drawn\n * by turns. */\nconst x = "by turns"; // by turns\nconst y = "https://by turns";\n'
    assert len(found_in(prose_of_typescript(script))) == 2
