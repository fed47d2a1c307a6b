"""Build all packages of a commit into a directory, bit for bit the same each time.

python -m release.build [--out dist] [--commit HEAD]

For each distribution a source archive and, from that, a wheel; of the core two wheels, with the compiled kernels, which
are for this platform, and without. Beside them ``SHA256SUMS`` and ``msprobe-VERSION.cdx.json``, the bill of
materials. Needs what the development environment has; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from release.sbom import bill_of_materials

ROOT = Path(__file__).parents[1]
PLUGINS = ("pytorch", "mindspore", "verl")
SUMS = "SHA256SUMS"
EPOCH = "SOURCE_DATE_EPOCH"
NATIVE = "MSPROBE_NATIVE"


def main() -> None:
    """Build a commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory; must be empty or missing")
    parser.add_argument("--commit", default="HEAD")
    arguments = parser.parse_args()
    if arguments.out.is_dir() and any(arguments.out.iterdir()):
        parser.error(f"{arguments.out} is not empty; remove what is in it")
    arguments.out.mkdir(parents=True, exist_ok=True)
    epoch = os.environ.get(EPOCH) or _git("log", "-1", "--format=%ct", arguments.commit).decode().strip()
    with tempfile.TemporaryDirectory() as place:
        source = exported(arguments.commit, Path(place))
        files = build_all(source, arguments.out, int(epoch))
        version = files[0].name.split("-")[1].removesuffix(".tar.gz")
        (arguments.out / f"msprobe-{version}.cdx.json").write_text(bill_of_materials(source, files, int(epoch)))
    write_sums(arguments.out)
    for path in sorted(arguments.out.iterdir()):
        sys.stdout.write(f"{path}\n")


def exported(commit: str, place: Path) -> Path:
    """Return the files of a commit in a new directory, so that nothing of the working tree gets into a package."""
    archive = place / "source.tar"
    archive.write_bytes(_git("archive", "--format=tar", commit))
    source = place / "source"
    _unpack(archive, source)
    return source


def build_all(source: Path, out: Path, epoch: int) -> list[Path]:
    """Build all distributions of a source tree; returns their files."""
    files: list[Path] = []
    for project in (source, *(source / "plugins" / name for name in PLUGINS)):
        [archive] = _built(project, out, epoch, "--sdist")
        files.append(archive)
        with tempfile.TemporaryDirectory() as place:
            _unpack(archive, Path(place))
            [unpacked] = Path(place).iterdir()
            files += _built(unpacked, out, epoch, "--wheel")
            if project == source:
                if files[-1].name.endswith("-none-any.whl"):
                    raise SystemExit("the kernels cannot be compiled here; install a C compiler")
                files += _built(unpacked, out, epoch, "--wheel", {NATIVE: "0"})
    return files


def write_sums(directory: Path) -> None:
    """Write the checksums of the files in a directory, as ``sha256sum --check`` reads them."""
    files = sorted(path for path in directory.iterdir() if path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / SUMS).write_text("".join(lines))


def _built(
    project: Path, out: Path, epoch: int, kind: str, settings: Mapping[str, str] | None = None
) -> Sequence[Path]:
    """Build one file; returns it."""
    before = set(out.iterdir())
    # Two builds must not differ by the umask or the locale of their users.
    environment = os.environ | {EPOCH: str(epoch), "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"} | dict(settings or {})
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", str(out), str(project)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, umask=0o022, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return sorted(set(out.iterdir()) - before)


def _unpack(archive: Path, place: Path) -> None:
    with tarfile.open(archive) as content:
        content.extractall(place, filter="data")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()
