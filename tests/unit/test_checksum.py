"""One CRC-32, whichever library computes it."""

import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import msprobe_core
from msprobe_core.fingerprint.checksums import crc32_text


@pytest.mark.parametrize("content", [b"", b"a", np.arange(1000, dtype=np.float32), np.arange(7, dtype=np.uint8)])
def test_it_is_the_crc32_of_zlib(content):
    assert crc32_text(content) == f"{zlib.crc32(bytes(memoryview(content))):08x}"


def test_without_the_faster_library():
    script = (
        "import sys; sys.modules['isal'] = None\n"
        "from msprobe_core.fingerprint import checksums\n"
        "assert checksums.crc32.__module__ == 'zlib'\n"
        "print(checksums.crc32_text(b'123456789'))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(msprobe_core.__file__).parents[1],
    )
    assert run.stdout.strip() == crc32_text(b"123456789") == "cbf43926"
