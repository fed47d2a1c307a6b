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

import pytest
from hatchling.builders.wheel import WheelBuilder

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "view_page"
BUILT = REPOSITORY / "msprobe_core" / "view" / "page"
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
    return sorted(found)


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
    assert len(re.findall(r"[^.\w]fetch\(", called)) == 1  # `fetched` of data.ts, for --serve


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
    out = tmp_path / "out"
    environment = os.environ | {"MSPROBE_PAGE_OUT": str(out)}
    for command in (["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], ["npm", "run", "--silent", "build"]):
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        if done.returncode and re.search(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT", done.stderr):
            pytest.skip("npm does not reach its registry")
        assert done.returncode == 0, done.stdout + done.stderr
    for name in ("index.html", "LICENSES.txt"):
        assert (out / name).read_bytes() == (BUILT / name).read_bytes()
