"""Hashes tensors by the kernel in Triton's interpreter, as on a GPU, for test_fused.py.

Each argument names a kernel. Of each of three windows it prints whether all hashes are those of the host, how often the
kernel ran, and of how many tensors its hash was compared with that of the operators; then the text that was logged. It
runs in a process of its own: when Triton is imported, it decides whether to interpret.
"""

import contextlib
import io
import json
import logging
import sys
import warnings

import torch
from fused_driver import tensors
from msprobe.pytorch._fused import hash_word
from msprobe.pytorch._reduce import TorchReducer

from msprobe_core.model import Digest


def wrong(words):
    """Lose the sign of 2-byte elements."""
    return hash_word(words.abs() if words.element_size() == 2 else words)


def refusing(words):
    raise RuntimeError("no such architecture")


KERNELS = {"right": hash_word, "wrong": wrong, "refusing": refusing}


def windows(kernel):
    made = tensors() | {
        "long": torch.randn(40_001), "float8": torch.randn(99).to(torch.float8_e5m2), "empty": torch.ones(0),
        "int64": torch.tensor([-1, 1 << 62, -(1 << 63)]), "cut": torch.randn(50, 40)[3:, 5:20],
    }  # fmt: skip
    expected = {name: Digest() for name in made}
    host = TorchReducer()
    for name, tensor in made.items():
        host.hash(tensor, expected[name])
    counts, found = [0], []

    def counted(words):
        counts[0] += 1
        return kernel(words)

    reducer = TorchReducer(defer_host=True, find_hash=lambda device: counted)
    for _ in range(3):
        counts[0], digests = 0, {name: Digest() for name in made}
        for name, tensor in made.items():
            reducer.hash(tensor, digests[name])
        num_words = sum(len(waiting) for waiting in reducer._separate.values())
        reducer.collect()
        same = all(digest.checksum == expected[name].checksum for name, digest in digests.items())
        found.append({"same": same, "launches": counts[0], "compared": num_words - len(made)})
    return found


def main():
    warnings.simplefilter("ignore", RuntimeWarning)  # of the interpreter, whose integers wrap
    found = {}
    for name in sys.argv[1:]:
        said = io.StringIO()
        handler = logging.StreamHandler(said)
        logging.getLogger("msprobe").addHandler(handler)
        with contextlib.redirect_stderr(said):
            found[name] = windows(KERNELS[name])
        logging.getLogger("msprobe").removeHandler(handler)
        found[name].append(said.getvalue())
    print(json.dumps(found))


main()
