#!/usr/bin/env bash
# Prove on a device that the probe is right, changes nothing, does not wait and is cheap:
#
#     bench/device/run.sh [--device cuda|cpu|simulated] [--out DIR] [--minutes 25] [--jobs 1] [--theirs DIR] [--small]
#         [CHAPTER ...]
#
# The machine's own Python (PYTHON, by default python3) must have PyTorch. What else is missing is installed from the
# wheels in bench/device/wheels, without a network, into DIR/site; `pack.sh` fetches them. Rows are
# written one by one to DIR, and the tables to DIR/proof.md: run again with the same directory, it goes on. Ends with 1
# if a row is not as promised, or if the time was over.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
out=device_proof
arguments=("$@")
for ((i = 0; i < $#; i++)); do
  if [ "${arguments[i]}" = --out ]; then out=${arguments[i + 1]}; fi
  # Triton has an interpreter for dry runs on the host; it must be asked for before Triton is imported.
  if [ "${arguments[i]}" = --device ] && [ "${arguments[i + 1]}" = cpu ]; then export TRITON_INTERPRET=1; fi
done
mkdir -p "$out"
if ! PYTHONPATH="$out/site" "$python" -c "import msgspec, pluggy, click, yaml, isal, transformers" 2>/dev/null; then
  if [ -e "$here/wheels/site.tar.xz" ]; then
    mkdir -p "$out/site"
    "$python" -c "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter='data')" \
      "$here/wheels/site.tar.xz" "$out/site"
  else
    "$python" -m pip install --quiet --no-index --no-deps --upgrade --target "$out/site" "$here"/wheels/*.whl
  fi
fi
# Without a workspace of its own, cuBLAS may add in another order each time.
export CUBLAS_WORKSPACE_CONFIG=:4096:8 TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false
export PYTHONPATH="$root:$root/plugins/pytorch:$root/tests/support:$(realpath "$out")/site${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m bench.device "$@"
