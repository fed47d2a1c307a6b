#!/usr/bin/env bash
# Fetch the wheels that `run.sh` needs on a machine that has PyTorch and NumPy but no network:
#
#     bench/device/pack.sh [PYTHON_VERSION, by default 3.12] [PLATFORM, by default manylinux_2_28_x86_64]
#
# With SMALL=1, without polars and what only comparisons need: chapters that need them are left out then.
# With ARCHIVE=1, only what a machine lacks that has transformers, pluggy, click, rich and pyyaml, unpacked and packed
# again in wheels/site.tar.xz: 34 MB instead of 54, for machines to which little can be sent.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=${1:-3.12}
platform=${2:-manylinux_2_28_x86_64}
packages=(msgspec pluggy click rich pyyaml isal transformers)
if [ -z "${SMALL:-}" ]; then packages+=(polars openpyxl); fi
options=()
if [ -n "${ARCHIVE:-}" ]; then
  packages=(msgspec isal polars polars-runtime-32 openpyxl et-xmlfile)
  options=(--no-deps)
fi
rm -rf "$here/wheels"
python3 -m pip download --quiet "${options[@]}" --only-binary=:all: --dest "$here/wheels" --python-version "$version" \
  --platform "$platform" --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
  --constraint "$here/../../constraints-dev.txt" "${packages[@]}"
rm -f "$here"/wheels/numpy-* # the machine's own goes with its PyTorch
if [ -n "${ARCHIVE:-}" ]; then
  for wheel in "$here"/wheels/*.whl; do
    python3 -m zipfile -e "$wheel" "$here/wheels/site"
    rm "$wheel"
  done
  tar --create --xz --file "$here/wheels/site.tar.xz" --directory "$here/wheels/site" .
  rm -r "$here/wheels/site"
fi
du -sh "$here/wheels"
