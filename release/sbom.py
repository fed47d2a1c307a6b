"""The bill of materials of a release: CycloneDX 1.5 in JSON.

It lists the distributions with their files, the packages that they require, and the packages from npm of which the page
of `msprobe view` holds parts, each with its licence. Source: https://cyclonedx.org/docs/1.5/json.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any

_NPM = re.compile(r"^=+\n(@?[\w./-]+) (\S+) \(([^)]+)\)$", re.MULTILINE)
"""A heading of the page's list of licences."""


def bill_of_materials(source: Path, files: Sequence[Path], epoch: int) -> str:
    """Return the bill of materials.

    Args:
        source: The source tree that was built.
        files: Source archives and wheels.
        epoch: Seconds since 1970, instead of the time of the build.
    """
    wheels = {name: metadata for path in files if path.suffix == ".whl" for name, metadata in [_metadata(path)]}
    own = [_distribution(name, metadata, files) for name, metadata in sorted(wheels.items())]
    page = _page(source / "msprobe_core" / "view" / "page" / "LICENSES.txt")
    required = sorted({need for metadata in wheels.values() for need in _required(metadata)} - wheels.keys())
    edges = {name: sorted(_required(metadata)) for name, metadata in wheels.items()}
    version = str(next(iter(wheels.values()))["Version"])
    content: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).isoformat(),
            "component": {"type": "application", "bom-ref": "msprobe", "name": "msprobe", "version": version},
        },
        "components": [*own, *page, *map(_library, required)],
        "dependencies": [
            {"ref": "msprobe", "dependsOn": [_pypi(name) for name in sorted(wheels)]},
            *(
                {
                    "ref": _pypi(name),
                    "dependsOn": [
                        *map(_pypi, needs),
                        *(each["bom-ref"] for each in page if name == "msprobe-core"),
                    ],
                }
                for name, needs in sorted(edges.items())
            ),
        ],
    }
    # The same content has the same number, so that two builds are equal.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    head = {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "serialNumber": f"urn:uuid:{serial}"}
    return json.dumps(head | content, indent=2) + "\n"


def _metadata(wheel: Path) -> tuple[str, Message]:
    with zipfile.ZipFile(wheel) as content:
        [name] = [name for name in content.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = BytesParser().parsebytes(content.read(name))
    return str(metadata["Name"]), metadata


def _required(metadata: Message) -> Iterable[str]:
    """Yield the names of distributions that are always required."""
    for text in metadata.get_all("Requires-Dist") or ():
        name, _, marker = str(text).partition(";")
        if "extra ==" not in marker:
            yield re.split(r"[\s<>=!~\[(]", name.strip())[0].lower()


def _pypi(name: str) -> str:
    return f"pkg:pypi/{name}"


def _distribution(name: str, metadata: Message, files: Sequence[Path]) -> dict[str, Any]:
    stem = f"{name.replace('-', '_')}-"
    version = str(metadata["Version"])
    return {
        "type": "library",
        "bom-ref": _pypi(name),
        "name": name,
        "version": version,
        "description": str(metadata["Summary"]),
        "purl": f"{_pypi(name)}@{version}",
        "licenses": [{"license": {"id": str(metadata["License-Expression"])}}],
        "components": [
            {
                "type": "file",
                "bom-ref": path.name,
                "name": path.name,
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
            }
            for path in sorted(files)
            if path.name.startswith(stem)
        ],
    }


def _library(name: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": _pypi(name), "name": name, "purl": _pypi(name), "scope": "required"}


def _page(licences: Path) -> list[dict[str, Any]]:
    """Return the packages from npm whose parts are in the page."""
    found = _NPM.findall(licences.read_text(encoding="utf-8"))
    assert found, f"{licences} has no headings"
    return [
        {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "purl": purl,
            "licenses": [{"license": {"id": licence}}],
        }
        for name, version, licence in found
        for purl in [f"pkg:npm/{name.replace('@', '%40')}@{version}"]
    ]
