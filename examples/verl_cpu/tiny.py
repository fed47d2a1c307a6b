"""A tiny language model with a byte-level tokenizer, and a data set of sums, all generated without downloads.

python tiny.py DIRECTORY
"""

import sys
from pathlib import Path

VOCABULARY = 264


def make_tokenizer(path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<bos>", "<unk>", "<|im_start|>", "<|im_end|>"]
    words += sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: number for number, word in enumerate(words)}
    # No merges, so that nothing is lost; verl's agent loop requires that a newline is one token.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )  # fmt: skip
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(path)


def make_model(path, layers=2, hidden=32):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0, eos_token_id=1,
        bos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(path)


def make_data(path, rows):
    import pandas as pd

    def row(i):
        return {
            "data_source": "sums", "prompt": [{"role": "user", "content": f"{i}+{i}="}], "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(2 * i)}, "extra_info": {"index": i, "split": "train"},
        }  # fmt: skip

    pd.DataFrame([row(i) for i in range(rows)]).to_parquet(path)


def make(directory):
    """Make everything that does not exist yet."""
    directory = Path(directory)
    if not (directory / "train.parquet").exists():
        directory.mkdir(parents=True, exist_ok=True)
        make_tokenizer(directory / "model")
        make_model(directory / "model")
        make_data(directory / "val.parquet", 4)
        make_data(directory / "train.parquet", 16)
    return directory


if __name__ == "__main__":
    print(make(sys.argv[1]))
