"""Embed data in the page: one file that needs no server and no network.

The data are base64, which has no character that could end its element, whatever names a dump contains.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterator
from importlib import resources
from pathlib import Path
from typing import BinaryIO

from msprobe_core.errors import StoreError
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory
from msprobe_core.store.results import refuse_foreign_text
from msprobe_core.untrusted.paths import encode_json
from msprobe_core.view.data import Unit, ViewData
from msprobe_core.view.stored_graphs import StoredGraphs

PLACEHOLDER = "<!--msprobe-data-->"
MAX_BYTES = 256 << 20
"""Size of all graphs in one file, in bytes of JSON: about 500,000 calls, which a browser reads in some seconds."""

_OFFLINE = "connect-src 'none'"
_LEVEL = 6
_GZIP = 16 + zlib.MAX_WBITS
"""Value of ``wbits`` that makes zlib write gzip's header."""


def template() -> str:
    """Return the page without data.

    Raises:
        StoreError: the package lacks it, or it has no place for data because it was built only in part.
    """
    page = resources.files("msprobe_core.view") / "page" / "index.html"
    try:
        text = page.read_text("utf-8")
    except OSError as error:
        raise StoreError(f"{page}: is part of the package and cannot be read; install msprobe-core again") from error
    if text.count(PLACEHOLDER) != 1:
        raise StoreError(f"{page}: has no place for data; install msprobe-core again")
    return text


def check_page(path: Path) -> None:
    """Check that writing a page will not replace another file; to be called before the work begins.

    Raises:
        StoreError: the path is an existing file that is not a page of ours.
    """
    refuse_foreign_text(path, "msprobe view", b'<meta name="msprobe-page-source"')


def write_page(data: ViewData, graphs: StoredGraphs, path: Path, units: Collection[int]) -> int:
    """Write a page with its data; return its size in bytes.

    Args:
        data: The data, with null graphs.
        graphs: Holds the graphs.
        path: Path of the page; its directory is created if it is missing.
        units: Indices of the units whose graphs are embedded.

    Raises:
        StoreError: it cannot be written; no part of it is left.
    """
    before, _, after = template().partition(PLACEHOLDER)
    make_directory(path.parent)
    with whole_file(path) as file:
        file.write(before.encode())
        file.write(b'<script type="application/octet-stream;base64" id="msprobe-data">')
        _write_packed(document(data, graphs, units), file)
        file.write(b"</script>")
        file.write(after.encode())
        return file.tell()


def served_page(source: dict[str, str]) -> bytes:
    """Return a page that requests its data from a server.

    Args:
        source: Addresses of the data; see docs/view_format.md.
    """
    text = encode_json(source).decode().replace("<", "\\u003c")  # HTML does not unescape the text of a script
    element = f'<script type="application/json" id="msprobe-source">{text}</script>'
    page = template()
    assert page.count(_OFFLINE) == 1, "the page forbids itself the network, in one place"
    before, _, after = page.replace(_OFFLINE, "connect-src 'self'").partition(PLACEHOLDER)
    return (before + element + after).encode()


def units_that_fit(data: ViewData, graphs: StoredGraphs, max_bytes: int = MAX_BYTES) -> list[int]:
    """Return the units to embed in one file, as many as fit: those of culprits first, then by severity."""
    culprits = {culprit.unit: i for i, culprit in reversed(list(enumerate(data.culprits)))}

    def key(number: int) -> tuple[int, float, int]:
        severity = data.units[number].severity
        worst = severity if isinstance(severity, float) else 0.0
        return culprits.get(number, len(culprits)), -worst, number

    chosen: list[int] = []
    left = max_bytes
    for number in sorted(graphs.sizes, key=key):
        if graphs.sizes[number] <= left or not chosen:
            chosen.append(number)
            left -= graphs.sizes[number]
    return sorted(chosen)


def document(data: ViewData, graphs: StoredGraphs, units: Collection[int]) -> Iterator[bytes]:
    """Yield the whole document in pieces, each of which holds at most one graph.

    Args:
        data: The data, with null graphs.
        graphs: Holds the graphs.
        units: Indices of the units whose graphs are included.
    """
    yield b"{"
    for i, name in enumerate(data.__struct_fields__):
        yield b"%b%b:" % (b"," if i else b"", encode_json(name))
        if name == "units":
            yield from _units(data.units, graphs, units)
        else:
            yield encode_json(getattr(data, name))
    yield b"}"


_NO_GRAPH = b"null}"


def _units(every: Collection[Unit], graphs: StoredGraphs, chosen: Collection[int]) -> Iterator[bytes]:
    yield b"["
    for number, unit in enumerate(every):
        if number:
            yield b","
        own = encode_json(unit)
        graph = graphs.content(number) if number in chosen else None
        assert own.endswith(_NO_GRAPH), "the graph is the last field, and it is null here"
        yield own if graph is None else own.removesuffix(_NO_GRAPH) + graph + b"}"
    yield b"]"


def _write_packed(pieces: Iterator[bytes], file: BinaryIO) -> None:
    """Write base64 of gzip, holding one piece at a time in memory."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    left = b""
    for piece in pieces:
        left = _write_encoded(left + packer.compress(piece), file)
    file.write(base64.b64encode(left + packer.flush()))


def _write_encoded(content: bytes, file: BinaryIO) -> bytes:
    """Write complete base64 groups; return the remaining bytes."""
    end = len(content) // 3 * 3
    file.write(base64.b64encode(content[:end]))
    return content[end:]
