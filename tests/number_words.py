"""A model whose words are token ids: what a bench needs of one, on a tiny target."""

from __future__ import annotations

from types import SimpleNamespace


class NumberWords:
    """`encode("1 2 3")` is [1, 2, 3]; a conversation is all its words, one after the other."""

    def __init__(self, target, can_converse=True):
        self.target = target
        template = "a template" if can_converse else None
        self.tokenizer = SimpleNamespace(chat_template=template, decode=self._decode)

    def encode(self, prompt):
        texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
        return [int(word) for text in texts for word in text.split()]

    def constraint(self, settings):
        return None

    def _decode(self, tokens, skip_special_tokens=True):
        return " ".join(map(str, tokens))
