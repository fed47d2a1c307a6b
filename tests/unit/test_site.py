"""The documentation as a site: every page is in its navigation and in both languages, and its links lead somewhere."""

import itertools
import re
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import yaml
from configuration_tables import BLOCKS, keys, meanings
from error_page import codes, sections
from reference_pages import PAGES

from mkdocs_hooks import anchors, headings, prose_lines, with_deep_lists, with_links
from msprobe_core.former_names.table import COMMANDS
from msprobe_core.plugins import registry

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
CHINESE = DOCS / "zh"
ENGLISH = sorted(path for path in DOCS.rglob("*.md") if CHINESE not in path.parents)
TRANSLATED = sorted(CHINESE.rglob("*.md"))
OUTSIDE = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", REPOSITORY / "SECURITY.md",
           *sorted(REPOSITORY.glob("plugins/*/*.md"))]  # fmt: skip
UNTRANSLATED = set((REPOSITORY / "tests" / "data" / "site" / "untranslated.txt").read_text().split())
"""Pages in English only, or with a Chinese text that is not of their last version. The list may only shrink: write a
new page in both languages, and change both."""


def name(path):
    return str(path.relative_to(REPOSITORY))


def places(items):
    for item in items:
        (content,) = item.values() if isinstance(item, dict) else (item,)
        yield from places(content) if isinstance(content, list) else (content,)


def code_blocks(text):
    prose = dict(prose_lines(text))
    lines = text.split("\n")
    return [line.strip() for number, line in enumerate(lines) if number not in prose]


def test_every_page_is_in_the_navigation_once():
    config = yaml.load((REPOSITORY / "mkdocs.yml").read_text(), yaml.BaseLoader)
    pages = {str(page.relative_to(DOCS)) for page in ENGLISH}
    shown = list(places(config["nav"]))
    assert pages == set(shown), "put the page into 'nav' of mkdocs.yml"
    assert len(shown) == len(set(shown))


def test_every_section_has_a_chinese_title():
    def titles(items):
        for item in items:
            for title, content in item.items() if isinstance(item, dict) else ():
                if isinstance(content, list):
                    yield title
                    yield from titles(content)

    config, chinese = (
        yaml.load((REPOSITORY / file).read_text(), yaml.BaseLoader) for file in ("mkdocs.yml", "mkdocs.zh.yml")
    )
    assert set(titles(config["nav"])) == set(chinese["extra"]["sections"])


def test_every_page_is_in_both_languages():
    pages, chinese = (
        {str(page.relative_to(root)) for page in found} for root, found in ((DOCS, ENGLISH), (CHINESE, TRANSLATED))
    )
    assert chinese <= pages
    assert pages - chinese <= UNTRANSLATED, "write the page in Chinese too, below docs/zh"
    assert pages >= UNTRANSLATED


@pytest.mark.parametrize(
    "page", [page for page in TRANSLATED if str(page.relative_to(CHINESE)) not in UNTRANSLATED], ids=name
)
def test_a_translation_has_the_code_and_the_headings_of_its_page(page):
    text = page.read_text()
    english = (DOCS / page.relative_to(CHINESE)).read_text()
    assert code_blocks(text) == code_blocks(english)
    assert [line.partition(" ")[0] for line in lines_of_headings(text)] == [
        line.partition(" ")[0] for line in lines_of_headings(english)
    ]
    given = re.findall(r'<a id="([^"]*)"></a>', "\n".join(lines_of_headings(text)))
    assert given == anchors(english)


def lines_of_headings(text):
    lines = text.split("\n")
    return [lines[number] for number in headings(text)]


def anchors_of(path):
    if CHINESE in path.parents:
        path = DOCS / path.relative_to(CHINESE)
    return anchors(path.read_text())


@pytest.mark.parametrize("page", [*ENGLISH, *TRANSLATED, *OUTSIDE], ids=name)
def test_links_lead_to_files_and_to_headings(page):
    prose = "\n".join(line for _, line in prose_lines(page.read_text()))
    wrong = []
    for link in re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`]*`", "", prose)):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() and CHINESE in file.parents:
            file = DOCS / file.relative_to(CHINESE)  # the site shows the English page until it is translated
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors_of(file)):
            wrong.append(link)
    assert wrong == []


def command_lines(text):
    """Yield what code blocks and code in sentences call ``msprobe`` with, one line of a shell after the other."""
    prose = dict(prose_lines(text))
    lines = text.split("\n")
    block = "\n".join(line for number, line in enumerate(lines) if number not in prose).replace("\\\n", " ")
    inline = re.findall(r"`(msprobe [^`]+)`", "\n".join(prose.values()))
    yield from re.findall(r"^\s*(?:\$ )?(msprobe [^|;&#\n]*)", block, re.MULTILINE)
    yield from (re.sub(r"\s+", " ", line) for line in inline)


def wrong_words(line):
    """Return the subcommand or the options of a command line that do not exist."""
    words = re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", line).split()[1:]
    commands = registry().commands()
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in {"-f", "--framework", "--no-plugin"} else 1 :]
    if not words or not re.fullmatch(r"[a-z][a-z0-9_-]*", words[0]) or words[0] in COMMANDS:
        return []
    command = commands.get(words[0])
    if command is None:
        return [words[0]]
    words = words[1:]
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z0-9_-]*", words[0]):
        inner = command.get_command(click.Context(command), words[0])
        if inner is None:
            return [words[0]]
        command, words = inner, words[1:]
    words = list(itertools.takewhile(lambda word: word != "--", words))
    settings = {
        "help_option_names": ["-h", "--help"]
    }  # as the command line has them; click keeps the option it makes first
    context = click.Context(command, **{**settings, **command.context_settings})
    known = {option for given in command.get_params(context) for option in (*given.opts, *given.secondary_opts)} | {
        "-h"
    }
    if not context.allow_interspersed_args:  # what follows the first argument is for another program
        words = list(itertools.takewhile(lambda word: word.startswith("-"), words))
    return [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", [*ENGLISH, *OUTSIDE], ids=name)
def test_commands_exist_with_these_options(page):
    text = page.read_text()
    shown = {f"--{name}" for name in re.findall(r'name = "([a-z-]+)"', text)}  # options of the plugins that it shows
    assert {line: wrong for line in command_lines(text) if (wrong := set(wrong_words(line)) - shown)} == {}


def test_what_is_not_a_command_or_an_option_is_seen():
    block = "```console\n$ msprobe compare -tp a \\\n  --never b\n$ msprobe verl compare nothing RUN\n```\n"
    text = f"Run `msprobe nothing RUN`.\n\n{block}"
    assert [wrong_words(line) for line in command_lines(text)] == [["--never"], ["nothing"], ["nothing"]]


def test_links_and_lists_are_those_of_the_site():
    page = CHINESE / "tutorials" / "index.md"
    text = "[a](../../../README.md), [b](../noise.md#limits)\nand `[c](d.md)`\n\n```\n[e](f.md)\n```\n"
    expected = "a, [b](../noise.md#limits)\nand `[c](d.md)`\n\n```\n[e](f.md)\n```\n"
    assert with_links(text, page, "tutorials/index.md") == expected
    assert with_links("![x](../images/view-graph.png)", CHINESE / "view.md", "view.md") == "![x](images/view-graph.png)"
    assert with_deep_lists("1. a\n   b\n\n   * c\n     d\n\ne\n") == "1. a\n    b\n\n    * c\n        d\n\ne\n"
    assert anchors('# A `b.c`: d & e\n\n```\n# no\n```\n## A\n## A <a id="x"></a>\n') == ["a-bc-d--e", "a", "a-1"]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page in {"commands.md", "plugin_api.md"} else []) for page in PAGES],
)
def test_pages_that_are_made_of_the_program_are_of_this_one(page):
    """`make reference` writes them."""
    if page in {"commands.md", "plugin_api.md"} and version("click").startswith("8.1."):
        pytest.skip("click 8.1 words usage in another way")
    for folder, text in zip((DOCS, CHINESE), PAGES[page](), strict=True):
        assert (folder / page).read_text() == text


def test_every_key_of_a_configuration_is_described_in_both_languages():
    said = {block: dict.fromkeys(described) for block, described in meanings().items()}
    assert said == {block: {key.name: None for key in keys() if key.block == block} for block in BLOCKS}
    for described in meanings().values():
        for texts in described.values():
            assert {"en", "zh"} <= set(texts) <= {"en", "zh", "en_allowed", "zh_allowed"}
            assert ("en_allowed" in texts) == ("zh_allowed" in texts)
            assert all(text.strip() for text in texts.values())
            assert re.findall(r"\]\(.*?\)|`[^`]*`", texts["en"]) == re.findall(r"\]\(.*?\)|`[^`]*`", texts["zh"])


def test_every_block_of_keys_is_on_the_page():
    text = (DOCS / "configuration.md").read_text()
    assert sorted(re.findall(r"<!-- keys of (\w+), written by", text)) == sorted(BLOCKS)


def test_every_code_of_an_error_has_a_section_in_both_languages():
    assert set(sections()) == set(codes())
    for texts in sections().values():
        assert set(texts) == {"en", "zh"}
        for said in texts.values():
            assert set(said) == {"means", "causes", "do"}
            assert all(text.strip() for text in (said["means"], *said["causes"], *said["do"]))
        assert [len(texts["en"][kind]) for kind in ("causes", "do")] == [
            len(texts["zh"][kind]) for kind in ("causes", "do")
        ]
