"""Compiles the kernels when the package is built or installed from a clone.

Without a C compiler, or with ``MSPROBE_NATIVE=0``, the package does without.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOM = Path("msprobe_core/native")
# Results must not depend on the machine: no fused multiplications, nothing reordered.
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared"]
# A compiler that cannot make one library for several generations of processors makes one for all of them.
VARIANTS = [[], ["-DONE_TARGET"]]
TIMEOUT_S = 300


class KernelsHook(BuildHookInterface):
    """Puts ``libkernels.so`` into wheels, which are then for one platform, and into the tree of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say so in ``build_data``."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        library, source = root / ROOM / "libkernels.so", root / ROOM / "kernels.c"
        # pip asks twice for an editable install, and several environments may share a clone.
        is_made = version == "editable" and library.exists() and library.stat().st_mtime > source.stat().st_mtime
        is_switched_off = version != "editable" and os.environ.get("MSPROBE_NATIVE") == "0"
        problem = None if is_made else "MSPROBE_NATIVE is 0" if is_switched_off else compile_kernels(source, library)
        if problem is None:
            build_data["artifacts"].append(f"/{ROOM.as_posix()}/{library.name}")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_of(library)}"
        else:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"the kernels are not compiled, recording on CPUs will be slower: {problem}")


def platform_of(library: Path) -> str:
    """Return the platform that a wheel with ``library`` is for; the package index takes no plain ``linux``.

    The C library that is needed is the newest that a symbol of the library names, and at least 2.17, of which every
    pip knows. Source: PEP 600. With another C library, which names none, the platform stays plain.
    """
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    versions = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())]
    if not platform.startswith("linux_") or not versions:
        return platform
    return f"manylinux_2_{max(17, *versions)}_{platform.removeprefix('linux_')}"


def compile_kernels(source: Path, library: Path) -> str | None:
    """Compile ``source`` to ``library``; returns why that is not possible."""
    compilers = [os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    problem = "there is no C compiler"
    for compiler in dict.fromkeys(name for name in compilers if name):
        for variant in VARIANTS:
            # Several environments may be made from one clone at a time, so the file comes into its place at once.
            with tempfile.TemporaryDirectory(dir=library.parent) as directory:
                made = Path(directory) / library.name
                command = [*shlex.split(compiler), *FLAGS, *variant, "-o", str(made), str(source), "-lm"]
                try:
                    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
                    made.replace(library)
                except FileNotFoundError:
                    break
                except subprocess.CalledProcessError as error:
                    problem = f"{compiler} says: {error.stderr[-500:]}"
                except (OSError, subprocess.SubprocessError) as error:
                    problem = f"{compiler}: {error}"
                else:
                    return None
    return problem
