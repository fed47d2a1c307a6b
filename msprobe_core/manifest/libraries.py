"""Installed distributions that can change what a training computes: their versions, commits and compiled modules."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msprobe_core.manifest.facts import Library

_NAMES = """
    accelerate apex atb auto-gptq autoawq bitsandbytes cupy datasets deepep deep-ep deep-gemm deepspeed diffusers
    einops fairscale fbgemm-gpu fla flash-attn flash-attn-3 flash-linear-attention flashinfer flashinfer-python fsspec
    grouped-gemm hydra-core jax jaxlib kernels lightning liger-kernel llamafactory mamba-ssm mbridge megablocks
    megatron-bridge megatron-core megatron-lm mindformers mindnlp mindspeed mindspeed-llm mindspeed-mm mindspeed-rl
    mindspore ml-dtypes modelscope ms-swift nemo-toolkit numpy numba omegaconf onnxruntime openmim openrlhf optimum
    peft pillow pyarrow pytorch-lightning pytorch-triton pytorch-triton-rocm ray safetensors scipy sentence-transformers
    sentencepiece sgl-kernel sglang slime tensordict tensorflow tiktoken timm tokenizers torch torch-npu
    torchao torchaudio torchdata torchrl torchtitan torchtune torchvision transformer-engine transformer-engine-torch
    transformers triton triton-ascend trl unsloth verl vllm vllm-ascend xformers xgrammar
    """
NAMES = frozenset(_NAMES.split())
"""Distributions that are listed if they are installed."""

PREFIXES = (
    "cann", "causal-conv1d", "intel-", "mindspeed", "mindspore", "mkl", "msprobe", "nvidia-", "rocm-", "torch-",
)  # fmt: skip

_INSTALLED = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+(-[^/]+)?)?\.(dist-info|egg-info)")
_PLACES = ("lib", "_C", "_core", "core")
"""Directories in a package in which packages keep what they have compiled, besides their own."""
_MODULES = (".so", ".pyd", ".dylib", ".dll")
_MAX_NOTE = 1 << 14
_FIRST_READ = 1 << 12
"""Bytes of a compiled module in which linkers place the table of segments and the notes."""
_MOST_MODULES = 256


class _Installed(NamedTuple):
    name: str
    version: str
    place: Path


def installed_libraries() -> tuple[Library, ...]:
    """Return the listed distributions that the process can import, by name; the first on ``sys.path`` counts.

    Names and versions are those of the directories of their metadata, which takes no reading:
    https://packaging.python.org/en/latest/specifications/recording-installed-packages/.
    """
    found: dict[str, _Installed] = {}
    for directory in dict.fromkeys(sys.path):
        for one in _in_directory(Path(directory or ".")):
            found.setdefault(one.name, one)
    return tuple(_described(found[name]) for name in sorted(found) if name in NAMES or name.startswith(PREFIXES))


def _in_directory(directory: Path) -> Iterator[_Installed]:
    for name in _names_in(directory):
        if name.endswith("-info") and (match := _INSTALLED.fullmatch(name)) is not None:
            yield _Installed(normalised(match["name"]), match["version"].replace("_", "+"), directory / name)


def normalised(name: str) -> str:
    """Return the name of a distribution as in PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _described(one: _Installed) -> Library:
    is_binary = one.name.startswith(("nvidia-", "intel-", "mkl"))  # the version says which build it is
    build = None if is_binary else build_of(one.place.parent, _packages_of(one))
    return Library(name=one.name, version=one.version, git=_commit_of(one), build=build)


def _commit_of(one: _Installed) -> str | None:
    """Return the commit in ``direct_url.json`` (PEP 610), or that of a package that says so itself."""
    try:
        content = json.loads((one.place / "direct_url.json").read_bytes()[:_MAX_NOTE])
        commit = content["vcs_info"]["commit_id"]
    except (OSError, ValueError, KeyError, TypeError):
        commit = None
    if commit is None:
        versions = (sys.modules.get(f"{name}.version") for name in _packages_of(one))
        commit = next((found for each in versions if (found := getattr(each, "git_version", None))), None)
    return commit if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{7,64}", commit) else None


def _packages_of(one: _Installed) -> list[str]:
    """Return the names under which a distribution is imported."""
    try:
        text = (one.place / "top_level.txt").read_bytes()[:_MAX_NOTE].decode("utf-8", "replace")
    except OSError:
        text = ""
    names = [line.strip() for line in text.splitlines()]
    return [name for name in names if name.isidentifier()] or [one.name.replace("-", "_")]


def build_of(root: Path, packages: Iterable[str]) -> str | None:
    """Return a digest of the identities of the compiled modules of some packages.

    All modules in the usual places count, loaded or not, because programs load some of them only when needed. The
    identity of a module is the build id that its linker wrote, else its size. Returns ``None`` without any.

    Args:
        root: The directory that a distribution is installed in; a package that is elsewhere must be imported.
        packages: Its packages.
    """
    modules = islice(_compiled_in(root, packages), _MOST_MODULES)
    identities = {f"{name} {identity_of(f'{place}{os.sep}{name}')}" for place, name in modules}
    return digest_of("\n".join(sorted(identities)).encode()) if identities else None


def _compiled_in(root: Path, packages: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Yield the compiled modules of some packages: directory, and name in it."""
    beside: list[str] | None = None
    for package in packages:
        file = getattr(sys.modules.get(package), "__file__", None)
        directory = root / package
        if isinstance(file, str) and not directory.is_dir() and Path(file).stem == "__init__":
            directory = Path(file).parent
        if directory.is_dir():
            names = _names_in(directory)
            inner = [directory / place for place in _PLACES if place in names]
            for place in (directory, *inner, directory.with_name(f"{package}.libs")):
                for name in names if place is directory else _names_in(place):
                    if name.endswith(_MODULES) or ".so." in name:
                        yield place, name
            continue
        beside = _names_in(root) if beside is None else beside
        for name in beside:
            if name.startswith(f"{package}.") and name.endswith(_MODULES):
                yield root, name


def _names_in(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208  # names are what is needed
    except OSError:
        return []


def identity_of(path: str | os.PathLike[str]) -> str:
    """Return the build id of a file in the format ELF, as its notes hold it; its size if there is none."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))  # a tenth of the time of a buffered file
        try:
            return _build_id(file) or f"{os.fstat(file).st_size} bytes"
        finally:
            os.close(file)
    except (OSError, struct.error, ValueError):
        return "unreadable"


def _build_id(file: int) -> str | None:
    """Source: System V ABI, chapter 4 "Object Files", and ``NT_GNU_BUILD_ID`` in the GNU extensions of elf.h."""
    begin = os.read(file, _FIRST_READ)
    if begin[:5] != b"\x7fELF\x02" or begin[5] != 1:  # 64 bits, little-endian
        return None
    table, size, count = struct.unpack_from("<Q", begin, 32)[0], *struct.unpack_from("<HH", begin, 54)
    if size < 56 or count > 64:
        return None
    segments = _part(file, begin, table, size * count)
    for place in range(0, len(segments) - 55, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", segments, place)
        if kind != 4 or length > _MAX_NOTE:  # PT_NOTE
            continue
        if (found := _build_id_in(_part(file, begin, offset, length))) is not None:
            return found
    return None


def _part(file: int, begin: bytes, offset: int, length: int) -> bytes:
    """Return some bytes of a file, of which the first ones have been read; fewer at its end."""
    end = offset + length
    if end <= len(begin):
        return begin[offset:end]
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, length)


def _build_id_in(notes: bytes) -> str | None:
    place = 0
    while place + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, place)
        begin = place + 12 + (name_size + 3) // 4 * 4
        if kind == 3 and notes[place + 12 : place + 16] == b"GNU\0":
            return notes[begin : begin + size].hex() or None
        place = begin + (size + 3) // 4 * 4
    return None


def digest_of(content: bytes) -> str:
    """Return a digest of 64 bits, as 16 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
