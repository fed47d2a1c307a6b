#!/usr/bin/env bash
# Fetch the wheels that `run.sh` needs on a machine that has PyTorch and NumPy but no network:
#
#     bench/device/pack.sh [PYTHON_VERSION, by default 3.12] [PLATFORM, by default manylinux_2_28_x86_64]
#
# With SMALL=1, without polars and what only comparisons need: the chapter against the host is left out then.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=${1:-3.12}
platform=${2:-manylinux_2_28_x86_64}
packages=(msgspec pluggy click rich pyyaml isal transformers)
if [ -z "${SMALL:-}" ]; then packages+=(polars openpyxl); fi
rm -rf "$here/wheels"
python3 -m pip download --quiet --only-binary=:all: --dest "$here/wheels" --python-version "$version" \
  --platform "$platform" --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
  --constraint "$here/../../constraints-dev.txt" "${packages[@]}"
rm -f "$here"/wheels/numpy-* # the machine's own goes with its PyTorch
du -sh "$here/wheels"
