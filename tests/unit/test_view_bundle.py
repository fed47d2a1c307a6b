"""The committed page of `msprobe view` is what its source makes, whole in one file, and asks for nothing outside."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hatchling.builders.wheel import WheelBuilder

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "view_page"
BUILT = REPOSITORY / "msprobe_core" / "view" / "page"
WORDING = BUILT.parents[1] / "wording"
MAX_BYTES = 2 << 20


class Elements(HTMLParser):
    """Tags with their attributes, and the text of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self._in = [], {"script": [], "style": []}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in self.texts:
            self._in = tag
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self._in = None

    def handle_data(self, data):
        if self._in:
            self.texts[self._in][-1] += data


@pytest.fixture(scope="module")
def page():
    return (BUILT / "index.html").read_bytes().decode()


@pytest.fixture(scope="module")
def elements(page):
    return Elements(page)


def source_files():
    found = []
    for path in SOURCE.rglob("*"):
        parts = path.relative_to(SOURCE).parts
        left_out = "node_modules" in parts or "dist" in parts or any(part.startswith(".") for part in parts)
        if path.is_file() and not left_out:
            found.append("/".join(parts))
    # The words of findings, which Python has too.
    return sorted([*found, *(f"../msprobe_core/wording/{language}.json" for language in ("en", "zh"))])


def source_hash():
    """As `sourceHash` of view_page/vite.config.ts."""
    digest = hashlib.sha256()
    for name in source_files():
        content = (SOURCE / name).read_bytes()
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


def test_is_made_from_the_source_as_it_is(elements):
    [held] = [
        tag["content"] for name, tag in elements.tags if name == "meta" and tag.get("name") == "msprobe-page-source"
    ]
    assert held == source_hash(), "view_page/ has changed since the page was made: run `make page` and commit the page"


def test_is_small():
    assert (BUILT / "index.html").stat().st_size <= MAX_BYTES


def test_holds_one_place_for_data_and_one_for_the_title(page):
    assert page.count("<!--msprobe-data-->") == 1
    assert page.count("<title>msprobe</title>") == 1
    assert page.count("connect-src 'none'") == 1  # what --serve replaces


def test_refers_to_no_other_file(elements):
    for name, attributes in elements.tags:
        assert name not in ("link", "iframe", "img", "base", "object", "embed")
        assert not {"src", "href", "srcset", "data"} & attributes.keys()
        assert not [key for key in attributes if key.startswith("on")]
    assert not re.findall(r"@import|url\((?!['\"]?data:)", "".join(elements.texts["style"]))
    called = "".join(elements.texts["script"])
    assert not re.findall(r"\bXMLHttpRequest\b|\bWebSocket\b|\bEventSource\b|\bsendBeacon\b|\bimport\(", called)
    assert len(re.findall(r"[^.\w]fetch\(", called)) == 1  # `asked` of data.ts, for --serve


def test_names_of_a_dump_never_become_markup():
    for path in (SOURCE / "src").glob("*.ts*"):
        assert not re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", path.read_text()
        )


def test_policy_allows_exactly_what_is_in_it(elements):
    [policy] = [tag["content"] for name, tag in elements.tags if name == "meta" and "http-equiv" in tag]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))

    def allowed(text):
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert directives["default-src"] == directives["connect-src"] == "'none'"
    assert [directives["script-src"]] == [allowed(text) for text in elements.texts["script"]]
    assert [directives["style-src"]] == [allowed(text) for text in elements.texts["style"]]


def test_licences_of_all_that_is_in_it():
    text = (BUILT / "LICENSES.txt").read_text(encoding="utf-8")
    lock = json.loads((SOURCE / "package-lock.json").read_text(encoding="utf-8"))
    for path, entry in lock["packages"].items():
        name = path.rpartition("node_modules/")[2]
        if (
            path
            and not entry.get("dev")
            and not entry.get("peer")
            and not name.startswith("@types/")
            and name != "csstype"
        ):
            assert f"{name} {entry['version']} (" in text, name
    assert "GPL" not in text
    assert text.count("Permission is hereby granted") + text.count("Permission to use, copy") >= 15


def test_wheels_have_it():
    files = {file.distribution_path for file in WheelBuilder(str(REPOSITORY)).recurse_included_files()}
    assert {"msprobe_core/view/page/index.html", "msprobe_core/view/page/LICENSES.txt"} <= files


def node_is_new_enough():
    if not shutil.which("npm") or not shutil.which("node"):
        return False
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    return int(version.lstrip("v").partition(".")[0]) >= 20


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("MSPROBE_REQUIRE_BROWSER"), reason="asked for by .ci/run; takes npm and half a minute"
)
@pytest.mark.skipif(not node_is_new_enough(), reason="needs npm and Node 20 or newer")
def test_is_byte_for_byte_what_the_source_makes(tmp_path):
    copy = tmp_path / "view_page"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("node_modules", "dist", ".*"))
    shutil.copytree(WORDING, tmp_path / "msprobe_core" / "wording")  # the page's templates are those of Python
    out = tmp_path / "out"
    environment = os.environ | {"MSPROBE_PAGE_OUT": str(out)}
    for command in (["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], ["npm", "run", "--silent", "build"]):
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        if done.returncode and re.search(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT", done.stderr):
            pytest.skip("npm does not reach its registry")
        assert done.returncode == 0, done.stdout + done.stderr
    for name in ("index.html", "LICENSES.txt"):
        assert (out / name).read_bytes() == (BUILT / name).read_bytes()


COLOUR_BLIND = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""Machado, Oliveira and Fernandes, A Physiologically-based Model for Simulation of Color Vision Deficiency, 2009."""
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)


def scale_of(theme):
    """The stops of a theme's colours in view_page/src/colour.ts."""
    text = (SOURCE / "src" / "colour.ts").read_text(encoding="utf-8")
    stops = re.search(rf"const {theme.upper()}: Stop\[\] = \[(.*?)\n\];", text, re.DOTALL)[1]
    found = re.findall(r"\[([\d.]+), \[(\d+), (\d+), (\d+)\]\]", stops)
    none = re.search(rf'{theme}: "rgb\((\d+), (\d+), (\d+)\)"', text)
    assert len(found) == 6
    return np.array(found, float), np.array(none.groups(), float)


def linear(colour):
    part = np.asarray(colour) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(light):
    ratio = TO_XYZ @ np.clip(light, 0, 1) / WHITE
    root = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("vision", COLOUR_BLIND)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_told_apart_by_every_eye(theme, vision):
    stops, none = scale_of(theme)

    def seen(colour):
        return lab(np.array(COLOUR_BLIND[vision]) @ linear(colour))

    def at(severity):
        return seen([np.interp(severity, stops[:, 0], stops[:, i]) for i in (1, 2, 3)])

    right, beyond, far, grey = at(0.1), at(0.62), at(0.97), seen(none)
    for one, other in ((right, beyond), (beyond, far), (right, far), (beyond, grey), (far, grey)):
        assert np.linalg.norm(one - other) > 25  # of CIE76, where 2.3 is just noticeable
    assert np.linalg.norm(right - grey) > 8  # the broken outline says it as well


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_on_colours_can_be_read(theme):
    stops, _ = scale_of(theme)
    for severity in np.linspace(0, 1, 41):
        light = TO_XYZ[1] @ linear([np.interp(severity, stops[:, 0], stops[:, i]) for i in (1, 2, 3)])
        assert max(1.05 / (light + 0.05), (light + 0.05) / 0.05) >= 4.5  # WCAG 2.2, 1.4.3; white, or black
