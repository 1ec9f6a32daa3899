"""A tiny target on disk, tokenizer and chat template included: what a user's own folder looks like."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from tiny_models import tiny_model

TEMPLATE = "{% for m in messages %}user {{ m['content'] }} answer{% endfor %}"


def write_tiny_folder(path: Path) -> Path:
    """50 words, 4 layers."""
    tiny_model("llama", vocab_size=50, num_hidden_layers=4).float().save_pretrained(path)
    words = {word: i for i, word in enumerate(["<unk>", "user", "answer", *(f"w{i}" for i in range(47))])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
    return path
