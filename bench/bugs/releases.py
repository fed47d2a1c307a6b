"""Releases of libraries, each in a directory of its own, which a process puts before today's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(os.environ.get("MSPROBE_BUGS_CACHE", "~/.cache/msprobe-bugs")).expanduser()
_HUB = "huggingface_hub==0.36.2"
_TOKENIZERS = ((40, "0.15.2"), (45, "0.19.1"), (47, "0.20.3"), (56, "0.21.4"), (99, "0.22.1"))
"""For minor versions of transformers 4 below the first number."""


class NoReleaseError(RuntimeError):
    """A release is not in the cache and cannot be installed."""


def transformers(version: str) -> tuple[str, ...]:
    """Return the requirements of a release of transformers 4."""
    minor = int(version.split(".")[1])
    tokenizers = next(own for below, own in _TOKENIZERS if minor < below)
    return f"transformers=={version}", f"tokenizers=={tokenizers}", _HUB


def timm(version: str) -> tuple[str, ...]:
    """Return the requirements of a release of timm."""
    return f"timm=={version}", "torchvision==0.29.1", "pillow==13.0.0"


def accelerate(version: str) -> tuple[str, ...]:
    """Return the requirements of a release of accelerate beside today's other libraries."""
    return f"accelerate=={version}", "psutil==7.2.2"


def peft(version: str) -> tuple[str, ...]:
    """Return the requirements of a release of peft beside a release of transformers that all of them know."""
    return f"peft=={version}", *transformers("4.53.0"), *accelerate("1.1.1")


def diffusers(version: str) -> tuple[str, ...]:
    """Return the requirements of a release of diffusers."""
    return f"diffusers=={version}", "importlib_metadata==8.5.0", "zipp==3.21.0", "pillow==13.0.0", _HUB


def torchao(version: str) -> tuple[str, ...]:
    """Return the requirements of a release of torchao."""
    return (f"torchao=={version}",)


def paths_of(requirements: Sequence[str]) -> list[Path]:
    """Return the directories of releases, which are installed if they are missing."""
    return [_installed(requirement) for requirement in requirements]


def has(requirements: Sequence[str]) -> bool:
    """Return whether releases can be had, now or by installing them."""
    try:
        paths_of(requirements)
    except NoReleaseError:
        return False
    return True


def _installed(requirement: str) -> Path:
    place = CACHE / requirement.replace("==", "-")
    if not place.exists():
        unfinished = place.with_name(f"{place.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", unfinished]
        done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise NoReleaseError(f"{requirement} cannot be installed: {done.stderr.strip()[-300:]}")
        try:
            unfinished.replace(place)
        except OSError:  # another process installed it meanwhile
            shutil.rmtree(unfinished)
    return place
