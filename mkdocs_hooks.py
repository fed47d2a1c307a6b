"""Hooks of the documentation site: two languages from one tree of files, with the links and anchors of a forge.

``docs/zh/x.md`` is the Chinese text of ``docs/x.md`` and takes its place in the Chinese site; a page without one is
shown in English there. Files are written for readers of the repository, so links may lead to sources, which the site
has not: their text remains. Lists are indented as Python-Markdown expects. Headings get the anchors that forges give
them; Chinese headings have those of the English page, as ``<a id="anchor"></a>`` after them says for forges, so that
one link works in both languages.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

DOCS = Path(__file__).parent / "docs"
CHINESE = "zh"
LANGUAGES = {"en": "English", "zh": "中文"}
FENCE = re.compile(r"^ *(`{3,}|~{3,})")
HEADING = re.compile(r"^(#{1,6}) +(.*?)(?: *<a id=\"([^\"]*)\"></a>)? *$")
ITEM = re.compile(r"(?:[*-]|\d+\.) +(?=\S)")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
log = logging.getLogger("mkdocs.hooks")


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines outside of code blocks, each with its number from 0."""
    fence = None
    for number, line in enumerate(text.split("\n")):
        found = FENCE.match(line)
        if fence is None and not found:
            yield number, line
        elif fence is None and found:
            fence = found[1]
        elif found and found[1].startswith(fence or "") and line.strip() == found[1]:
            fence = None


def headings(text: str) -> dict[int, str]:
    """Return the headings of a page by the numbers of their lines."""
    return {number: match[2] for number, line in prose_lines(text) if (match := HEADING.match(line))}


def anchors(text: str) -> list[str]:
    """Return the anchors of a page's headings, as forges make them: ``## What is `rtol`?`` is ``what-is-rtol``."""
    seen: Counter[str] = Counter()
    result = []
    for heading in headings(text).values():
        plain = LINK.sub(r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        result.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return result


def with_anchors(text: str, names: list[str]) -> str:
    """Give each heading its anchor, for the extension ``attr_list``."""
    lines = text.split("\n")
    for (number, heading), name in zip(headings(text).items(), names, strict=False):
        lines[number] = f"{lines[number].partition(' ')[0]} {heading} {{: #{name} }}"
    return "\n".join(lines)


def with_deep_lists(text: str) -> str:
    """Indent what belongs to an item of a list by four spaces for each level, as Python-Markdown expects."""
    prose = dict(prose_lines(text))
    lines, widths = text.split("\n"), list[int]()
    for number, line in enumerate(lines):
        if not line.strip() or (number not in prose and not widths):
            continue
        indent = len(line) - len(line.lstrip())
        while widths and indent < sum(widths):
            widths.pop()
        content = line[sum(widths) :]
        lines[number] = "    " * len(widths) + content
        if number in prose and (item := ITEM.match(content)):
            widths.append(item.end())
    return "\n".join(lines)


def placed(target: str, source: Path, place: str) -> str | None:
    """Return a link of a file as a link of the page at this place, or None if it leads out of the documentation.

    Args:
        target: What the file links to, relative to itself.
        source: The file, in ``docs`` or in ``docs/zh``.
        place: Where the site has the page, relative to its root.
    """
    path, sign, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return target
    file = Path(os.path.normpath(source.parent / path))
    if not file.exists() and DOCS / CHINESE in file.parents:
        file = DOCS / file.relative_to(DOCS / CHINESE)  # not translated
    if not file.exists():
        log.warning("%s links to %s, which does not exist", source, target)
        return target
    if DOCS not in file.parents:
        return None
    root = DOCS / CHINESE if DOCS / CHINESE in file.parents else DOCS
    relative = os.path.relpath(file.relative_to(root), PurePosixPath(place).parent)
    return f"{Path(relative).as_posix()}{sign}{anchor}"


def with_links(text: str, source: Path, place: str) -> str:
    """Turn the links of a file into those of the page at this place; of links to other files, the text remains."""

    def turned(match: re.Match[str]) -> str:
        if match[2] is None:  # code
            return match[0]
        target = placed(match[2], source, place)
        return match[1] if target is None else f"[{match[1]}]({target})"

    lines = text.split("\n")
    prose = dict(prose_lines(text))
    code = [line for number, line in enumerate(lines) if number not in prose]
    kept = "\n".join(prose.get(number, "\0") for number in range(len(lines)))  # a link may be longer than a line
    return re.sub("\0", lambda _: code.pop(0), re.sub(rf"`[^`]*`|{LINK.pattern}", turned, kept))


def on_files(files: Any, config: Any) -> Any:
    """Put translated pages in the places of the others, and leave out the folder of translations."""
    from mkdocs.structure.files import File

    for file in list(files):
        place = PurePosixPath(file.src_uri)
        if place.parts[0] != CHINESE:
            continue
        files.remove(file)
        if config.extra["tongue"] == CHINESE:
            there = place.relative_to(CHINESE).as_posix()
            if files.get_file_from_path(there) is not None:
                files.remove(files.get_file_from_path(there))
            files.append(File(there, str(DOCS / CHINESE), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn links, and give headings their anchors."""
    place = page.file.src_uri
    english = (DOCS / place).read_text(encoding="utf-8")
    linked = with_links(with_deep_lists(markdown), Path(page.file.abs_src_path), place)
    return with_anchors(linked, anchors(english))


def on_nav(nav: Any, *, config: Any, **_: Any) -> Any:
    """Translate the titles of sections."""
    titles = config.extra.get("sections", {})

    def translate(items: list[Any]) -> None:
        for item in items:
            if item.is_section:
                item.title = titles.get(item.title, item.title)
            translate(item.children or [])

    translate(nav.items)
    return nav


def on_page_context(context: Any, *, config: Any, **_: Any) -> Any:
    """Show the switch of languages."""
    config.extra["alternate"] = [{"name": name, "link": lang, "lang": lang} for lang, name in LANGUAGES.items()]
    return context


def on_post_page(output: str, *, page: Any, config: Any, **_: Any) -> str:
    """Let the switch of languages lead to the same page: MkDocs makes no links that leave a site."""
    up = "../" * page.url.count("/")
    root = f"{up}../" if config.extra["tongue"] == CHINESE else up
    links = {"en": f"{root}{page.url}", CHINESE: f"{root}zh/{page.url}"}
    return re.sub(
        r'href="[^"]*" hreflang="(\w+)"', lambda match: f'href="{links[match[1]]}" hreflang="{match[1]}"', output
    )
