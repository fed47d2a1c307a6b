"""Digests of tensors, for the `Reducer` of a framework plugin: public.

A fingerprint adds up over shards: a 64-bit hash, and a sketch that estimates distances. Both are defined
once, for the arrays of any library; a plugin implements `Arrays`. For tensors on the host the same is done in C.

* `hash_of`, `Sketcher` and the module ``fp8`` compute on `Arrays`; `NumpyArrays` is the implementation for NumPy.
* `hash_rows` computes the hash of each row, `ordered_hash` and `unordered_hash` that of all of them.
* `Place` says where a shard's elements are in the whole tensor, `local_offset` where a rank's shard begins.
* `crc32_text`, `xor_text` and `word_text` format checksums as dumps hold them.
* `kernels` returns the compiled reductions, or ``None`` without them; `FLOAT_KINDS` and `INTEGER_KINDS` are the dtypes
  that they know, and `Threads` lends them a framework's threads.

Names are imported on first use.
"""

from typing import TYPE_CHECKING

from msprobe_core.lazy import lazy_names

if TYPE_CHECKING:
    from msprobe_core.fingerprint import fp8
    from msprobe_core.fingerprint.arrays import Arrays, NumpyArrays
    from msprobe_core.fingerprint.checksums import crc32_text, word_text, xor_text
    from msprobe_core.fingerprint.hashing import hash_of
    from msprobe_core.fingerprint.place import Place
    from msprobe_core.fingerprint.rows import hash_rows, ordered_hash, unordered_hash
    from msprobe_core.fingerprint.shard_ranges import local_offset
    from msprobe_core.fingerprint.sketch import Sketcher
    from msprobe_core.native.reductions import FLOAT_KINDS, INTEGER_KINDS, NATIVE_VARIABLE, Threads, kernels
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe_core.fingerprint.arrays": "Arrays NumpyArrays",
            "msprobe_core.fingerprint.checksums": "crc32_text word_text xor_text",
            "msprobe_core.fingerprint.hashing": "hash_of",
            "msprobe_core.fingerprint.place": "Place",
            "msprobe_core.fingerprint.rows": "hash_rows ordered_hash unordered_hash",
            "msprobe_core.fingerprint.shard_ranges": "local_offset",
            "msprobe_core.fingerprint.sketch": "Sketcher",
            "msprobe_core.native.reductions": "FLOAT_KINDS INTEGER_KINDS NATIVE_VARIABLE Threads kernels",
        },
    )

__all__ = [  # noqa: RUF022  # by purpose
    # Hash, sketch and losses in FP8
    "Arrays", "NumpyArrays", "Sketcher", "hash_of", "fp8",
    # Rows
    "hash_rows", "ordered_hash", "unordered_hash",
    # Shards
    "Place", "local_offset",
    # Checksums
    "crc32_text", "word_text", "xor_text",
    # Reductions in C
    "FLOAT_KINDS", "INTEGER_KINDS", "NATIVE_VARIABLE", "Threads", "kernels",
]  # fmt: skip
