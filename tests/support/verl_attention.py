"""Attention over packed sequences on CPUs, in the place of flash attention: verl puts Ulysses around that one only."""

import torch
from transformers import AttentionInterface
from transformers.integrations import flash_attention
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

NAME = "packed_cpu"


def packed_attention(query, key, value, attention_mask, query_length, *, position_ids, softmax_scale=None, **_):
    """Return what each token sees of the tokens before it in its own sequence, ``[1, tokens, heads, size]``.

    Sequences begin where ``position_ids``, ``[1, tokens]``, are 0.
    """
    sequence = (position_ids[0] == 0).cumsum(0)
    is_seen = (sequence[:, None] == sequence[None, :]).tril()
    heads_first = [states.transpose(1, 2) for states in (query, key, value)]
    result = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, attn_mask=is_seen, scale=softmax_scale, enable_gqa=True
    )
    return result.transpose(1, 2)


def install():
    """Let models have it as ``attn_implementation``, and verl as what it puts Ulysses around."""
    from verl.models.transformers import monkey_patch

    monkey_patch._flash_attention_forward = packed_attention
    AttentionInterface.register(NAME, lambda *args, **kwargs: flash_attention.flash_attention_forward(*args, **kwargs))
    AttentionMaskInterface.register(NAME, flash_attention_mask)
