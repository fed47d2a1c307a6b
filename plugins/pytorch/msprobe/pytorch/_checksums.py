"""Checksums of tensors: CRC-32 on the host, exclusive or on the tensor's device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from msprobe.pytorch._memory import memory_of, words_of
from msprobe_core.fingerprint import crc32_text, xor_text


def crc32_of(values: Tensor) -> str:
    """Return the CRC-32 of the contiguous bytes of a host tensor as 8 hex digits."""
    memory = memory_of(values)
    return crc32_text(words_of(bytes_of(values)) if memory is None else memory)


def xor_of(values: Tensor) -> str:
    """Return the exclusive or of the words of a host tensor as ``0x`` and 16 hex digits."""
    memory = memory_of(values)
    return xor_text(words_of(bytes_of(values)).view("u1") if memory is None else np.frombuffer(memory, np.uint8))


def bytes_of(values: Tensor) -> Tensor:
    """Return the contiguous bytes as a vector; without a copy if they are contiguous already."""
    flat = values.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # one element may have any stride and be contiguous


def xor_on_device(content: Tensor) -> Tensor:
    """Return the exclusive or of the words as a 0-d int64 tensor, by folding in halves, without waiting."""
    words = torch.zeros((content.numel() + 7) // 8 or 1, dtype=torch.int64, device=content.device)
    words.view(torch.uint8)[: content.numel()].copy_(content)
    while words.numel() > 1:
        half = (words.numel() + 1) // 2
        rest = words[half:]
        words = words[:half].clone()
        words[: rest.numel()] ^= rest
    return words[0]
