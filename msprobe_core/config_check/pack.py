"""A pack: what `ConfigChecker` and ``msprobe config_check -d`` collect, in the layout of `mindstudio-probe` 26.2.

::

    env                                     environment variables, JSON
    pip                                     installed distributions, a line ``name=version`` each
    hyperparameters/hyperparameters_static.json, hyperparameters_dynamic.json
    dataset/step{n}/rank{r}/dataset.json    max, min, mean, norm of the inputs of each micro-step
    weights/step{n}/rank{r}/weight.json     the same of the parameters
    random/rank{r}.json                     calls of random functions, with their stacks
    manifest/rank{r}.json                   the manifest of the rank; ours only
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from msprobe_core.errors import DamagedDumpError, DumpError, clip
from msprobe_core.manifest.facts import Manifest, Scalar
from msprobe_core.manifest.settings import flattened
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory
from msprobe_core.store.manifest_file import decode_manifest
from msprobe_core.untrusted.files import most_unfolded, open_plain
from msprobe_core.untrusted.json_text import check_nesting, without_depth
from msprobe_core.untrusted.paths import encode_json

ENVIRONMENT, LIBRARIES = "env", "pip"
STATIC, DYNAMIC = "hyperparameters_static.json", "hyperparameters_dynamic.json"

_STEP = re.compile(r"(dataset|weights)/step(\d{1,12})/rank(\d{1,9})/\w+\.json", re.ASCII)
_RANK = re.compile(r"(random|manifest)/rank(\d{1,9})\.json", re.ASCII)
_MOST_MEMBERS = 1_000_000
_QUANTITIES = ("max", "min", "mean", "norm")

Place: TypeAlias = tuple[int, int]
"""Micro-step and rank."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of one tensor; ``None`` where it has none."""

    max: float | None = None
    min: float | None = None
    mean: float | None = None
    norm: float | None = None


@dataclass(frozen=True, slots=True)
class RandomSite:
    """Calls of one random function from one place.

    Attributes:
        count: Number of calls.
        stack: Its frames, innermost first.
    """

    count: int
    stack: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The content of a pack. What it does not hold is ``None`` or empty.

    Attributes:
        environment: Environment variables.
        libraries: Versions of distributions.
        settings: Settings by file, of `STATIC` and `DYNAMIC`.
        dataset: Statistics of the inputs of the model by place and name.
        weights: Statistics of the parameters by place and name.
        random: Calls of random functions by rank and name.
        manifests: Manifests by rank.
    """

    environment: Mapping[str, str] | None = None
    libraries: Mapping[str, str] | None = None
    settings: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict[str, Mapping[str, Scalar]])
    dataset: Mapping[Place, Mapping[str, Summary]] = field(default_factory=dict[Place, Mapping[str, Summary]])
    weights: Mapping[Place, Mapping[str, Summary]] = field(default_factory=dict[Place, Mapping[str, Summary]])
    random: Mapping[int, Mapping[str, Sequence[RandomSite]]] = field(
        default_factory=dict[int, Mapping[str, Sequence[RandomSite]]]
    )
    manifests: Mapping[int, Manifest] = field(default_factory=dict[int, Manifest])


# --- reading ---------------------------------------------------------------------------------------------------------


def is_pack(path: Path) -> bool:
    """Whether a file is a zip, by its first bytes."""
    try:
        with open_plain(path) as file:
            return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    except OSError:
        return False


def read_pack(path: Path) -> Pack:
    """Return the content of a pack of ours or of `mindstudio-probe`; nothing is extracted to the disk.

    Raises:
        DumpError: it cannot be read, is no pack, or expands to more than its length justifies.
    """
    try:
        with io.BufferedReader(open_plain(path)) as file, zipfile.ZipFile(file) as archive:
            return _PackReader(archive, path).pack()
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror or error})") from error
    except DumpError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise DamagedDumpError(
            f"{path}: is no zip, or a damaged one ({clip(str(error) or type(error).__name__)})"
        ) from error


class _PackReader:
    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive = archive
        self._path = path
        infos = archive.infolist()
        self._most = most_unfolded(path.stat().st_size)
        declared = sum(each.file_size for each in infos)
        if declared > self._most or len(infos) > _MOST_MEMBERS:
            raise DumpError(
                f"{path}: claims {len(infos):,} files of {declared >> 20:,} MiB, more than a zip of its length should"
            )
        self._members = {each.filename: each for each in infos if not each.is_dir()}

    def pack(self) -> Pack:
        settings = {
            name: flattened(self._object(f"hyperparameters/{name}"))
            for name in (STATIC, DYNAMIC)
            if f"hyperparameters/{name}" in self._members
        }
        parts: dict[str, dict[Any, Any]] = {"dataset": {}, "weights": {}, "random": {}, "manifest": {}}
        for name in self._members:
            if (found := _STEP.fullmatch(name)) is not None:
                place = int(found[2]), int(found[3])
                parts[found[1]][place] = dict(_summaries(self._object(name), "", 0))
            elif (found := _RANK.fullmatch(name)) is not None:
                is_random = found[1] == "random"
                content = _sites(self._object(name)) if is_random else self._manifest(name)
                parts[found[1]][int(found[2])] = content
        environment = self._object(ENVIRONMENT) if ENVIRONMENT in self._members else None
        libraries = self._libraries() if LIBRARIES in self._members else None
        if environment is libraries is None and not settings and not any(parts.values()):
            raise DumpError(
                f"{self._path}: is no pack of a configuration: it has none of env, pip, hyperparameters/, dataset/, "
                "weights/, random/ and manifest/; make one with `msprobe config_check -d` or ConfigChecker"
            )
        return Pack(
            environment=None if environment is None else {name: str(value) for name, value in environment.items()},
            libraries=libraries,
            settings=settings,
            dataset=parts["dataset"],
            weights=parts["weights"],
            random=parts["random"],
            manifests=parts["manifest"],
        )

    def _content(self, name: str) -> bytes:
        # A damaged member may have more bytes than the directory says.
        most = self._members[name].file_size
        with self._archive.open(self._members[name]) as member:
            content = member.read(most + 1)
        if len(content) > most:
            raise DumpError(f"{self._path}: {clip(name)} is larger than it claims")
        return content

    def _object(self, name: str) -> dict[str, Any]:
        content = without_depth(self._content(name))
        try:
            found = json.loads(content)
            check_nesting(found)
        except (ValueError, RecursionError) as error:
            raise DumpError(f"{self._path}: {clip(name)} is no JSON ({clip(str(error))})") from error
        if not isinstance(found, dict):
            raise DumpError(f"{self._path}: {clip(name)} is no JSON object")
        return cast("dict[str, Any]", found)

    def _manifest(self, name: str) -> Manifest:
        return decode_manifest(self._content(name), Path(f"{self._path}:{name}"))

    def _libraries(self) -> dict[str, str]:
        lines = self._content(LIBRARIES).decode("utf-8", "replace").splitlines()
        pairs = [line.strip().partition("=") for line in lines]
        return {name: version.lstrip("=") for name, mark, version in pairs if mark}


def _summaries(value: Any, path: str, depth: int) -> Iterator[tuple[str, Summary]]:
    """Yield the statistics in nested objects by their dotted places."""
    if not isinstance(value, dict) or depth > 64:
        return
    content = cast("dict[str, Any]", value)
    if (
        content
        and all(key in _QUANTITIES for key in content)
        and not any(isinstance(each, dict) for each in content.values())
    ):
        yield path, Summary(**{key: _number(each) for key, each in content.items()})
        return
    for key, each in content.items():
        yield from _summaries(each, f"{path}.{key}" if path else key, depth + 1)


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _sites(content: Mapping[str, Any]) -> dict[str, list[RandomSite]]:
    found: dict[str, list[RandomSite]] = {}
    for name, sites in content.items():
        for each in cast("list[Any]", sites) if isinstance(sites, list) else []:
            if isinstance(each, dict) and isinstance(count := cast("dict[str, Any]", each).get("count"), int):
                stack = cast("dict[str, Any]", each).get("stack")
                frames = [str(one) for one in cast("list[Any]", stack)] if isinstance(stack, list) else []
                found.setdefault(name, []).append(RandomSite(count, frames))
    return found


# --- writing ---------------------------------------------------------------------------------------------------------


def write_pack(path: Path, pack: Pack) -> None:
    """Write a pack, completely or not at all.

    Raises:
        StoreError: it cannot be written.
    """
    make_directory(path.parent)
    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _members_of(pack):
            info = zipfile.ZipInfo(name)  # without a time, so that equal packs are equal files
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o600 << 16
            archive.writestr(info, content)


def _members_of(pack: Pack) -> Iterator[tuple[str, bytes]]:
    if pack.environment is not None:
        yield ENVIRONMENT, encode_json(dict(pack.environment), indent=4)
    if pack.libraries is not None:
        yield LIBRARIES, "\n".join(f"{name}={version}" for name, version in pack.libraries.items()).encode()
    for name, settings in pack.settings.items():
        yield f"hyperparameters/{name}", encode_json(dict(settings), indent=4)
    for (step, rank), tensors in sorted(pack.dataset.items()):
        yield f"dataset/step{step}/rank{rank}/dataset.json", encode_json(_tree(tensors), indent=4)
    for (step, rank), tensors in sorted(pack.weights.items()):
        flat = {name: _plain(summary) for name, summary in tensors.items()}
        yield f"weights/step{step}/rank{rank}/weight.json", encode_json(flat, indent=4)
    for rank, functions in sorted(pack.random.items()):
        calls = {
            spelled(name): [{"count": site.count, "stack": list(site.stack)} for site in sites]
            for name, sites in functions.items()
        }
        yield f"random/rank{rank}.json", encode_json(calls, indent=4)
    for rank, manifest in sorted(pack.manifests.items()):
        yield f"manifest/rank{rank}.json", encode_json(manifest)


def spelled(name: str) -> str:
    """Return the name of a random function as `mindstudio-probe` writes it."""
    name = name.removeprefix("torch.") if name.startswith("torch.Tensor.") else name
    return f"np.{name.removeprefix('numpy.')}" if name.startswith("numpy.") else name


def _plain(summary: Summary) -> dict[str, float | None]:
    return {name: getattr(summary, name) for name in _QUANTITIES}


def _tree(tensors: Mapping[str, Summary]) -> dict[str, Any]:
    """Return statistics by place as nested objects: ``args`` and ``kwargs`` outside."""
    tree: dict[str, Any] = {"args": {}, "kwargs": {}}
    for path, summary in tensors.items():
        *scopes, last = path.split(".")
        place = tree
        for scope in scopes:
            place = place.setdefault(scope, {})
        place[last] = _plain(summary)
    return tree
