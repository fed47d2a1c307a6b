"""Every sentence that the engines behind a page can write has a Chinese one in ``view_page/src/sentences.json``."""

import ast
import json
import re
from pathlib import Path

import pytest

from msprobe_core.judge.noise import measures, model

REPOSITORY = Path(__file__).parents[2]
CORE = REPOSITORY / "msprobe_core"
CATALOGUE = json.loads((REPOSITORY / "view_page" / "src" / "sentences.json").read_text(encoding="utf-8"))
SENTENCES, WORDS = CATALOGUE["sentences"], CATALOGUE["words"]

WRITERS = [
    *(f"view/{name}.py" for name in ("suspects", "trends", "build", "calls", "communication")),
    "judge/verdict.py",
]
"""Modules that write what pages show."""

PARTS = {
    "view/suspects.py": {
        " in {}": "The runs part first{} at {} in {}: {}.",
        "not finite": "{} {} {}: not finite",
        "micro step {}": "The runs part first{} at {}{}: {}.",
        "rank {}": "Values stop being finite{} at {}: {}.",
        "A single run, with nothing to hold it against: {} calls":
            "A single run, with nothing to hold it against: {} calls, {}.",
        "NaN or Inf: {}": "NaN or Inf",
    },
    "view/trends.py": {
        "{} and {}": "",
        "The runs part first{} at {}: {}.": "The runs part first{} at {}: its {} is {}.",
        "its {} is {}": "The runs part first{} at {}: its {} is {}.",
        "its {} is {} % off": "The runs part first{} at {}: its {} is {} % off.",
    },
    "view/build.py": {"{} and {}": ""},
    "view/calls.py": {
        "only the ": "only the target run has this call",
        " run has this call": "only the golden run has this call",
        " holds NaN or Inf": "{} holds NaN or Inf",
    },
}  # fmt: skip
"""What is put together with others, and a sentence of the catalogue that has it; titles and numbers need none."""


def texts_of(path):
    """Yield the texts of a module that are more than one word, with ``{}`` for what is put into them.

    Documentation, what is raised and logged, and what becomes no text are left out.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = set()
    for node in ast.walk(tree):
        is_statement = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_log = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_logger.")
        if is_statement or is_log or isinstance(node, (ast.Raise, ast.Assert)):
            left_out.update(id(each) for each in ast.walk(node))
        if isinstance(node, ast.JoinedStr):
            left_out.update(
                id(each) for part in node.values for each in ast.walk(part) if not is_text_in_place(part, each)
            )
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        text = template_of(node)
        if text is not None and re.search(r"\S [^ ]", text) and re.search(r"[A-Za-z]{2}", text):
            yield text


def is_text_in_place(part, node):
    """Whether a text stands within a place of another, such as ``{'is' if x else 'are'}``: then it is looked at too."""
    return (
        isinstance(part, ast.FormattedValue)
        and isinstance(node, (ast.Constant, ast.JoinedStr))
        and node in ast.walk(part.value)
    )


def template_of(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def is_command(text):
    return text.startswith("msprobe ")


@pytest.mark.parametrize("name", WRITERS)
def test_every_sentence_has_a_translation(name):
    parts = PARTS.get(name, set())
    unknown = [
        text
        for text in texts_of(CORE / name)
        if text not in SENTENCES and text not in WORDS and text not in parts and not is_command(text)
    ]
    assert not unknown, f"{name}: add to view_page/src/sentences.json, and run make page: {unknown}"


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_in_use_and_in_a_sentence(name):
    used = {*texts_of(CORE / name)}
    for part, whole in PARTS[name].items():
        assert part in used, f"{part!r} is written no more"
        assert not whole or whole in SENTENCES or whole in WORDS, f"{whole!r} has no translation"


def test_every_word_for_evidence_and_measures_has_a_translation():
    assert {*measures.WORDS.values(), *(word for word, _ in model.EVIDENCE)} <= {*WORDS}


@pytest.mark.parametrize("english", SENTENCES)
def test_a_translation_has_the_places_of_its_sentence(english):
    places = {int(number) for number in re.findall(r"\{(\d)(?:\|[tkw])?\}", SENTENCES[english])}
    assert places == {*range(english.count("{}"))}
    assert re.search(r"[\u4e00-\u9fff]", SENTENCES[english])
    assert "{}" not in SENTENCES[english]
