"""Structured output: the target's tokens held to a JSON schema, a regular expression or an EBNF grammar, by xgrammar.

A matcher follows the answer. For every round it walks the draft tree, drops the nodes that the grammar forbids, and
notes which tokens may follow each of the others, so that a node's logits are masked by the state that its own path
leads to.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.errors import InputError
from paceline.json_schema import check_pattern, check_schema
from paceline.tree import DraftTree
from paceline.types import Grammar

MAX_REASON = 200


class GrammarCompiler:
    """Compiles grammars for one tokenizer; equal grammars are compiled once.

    Raises:
        InputError: xgrammar is not installed, or does not know this kind of tokenizer.
    """

    def __init__(self, tokenizer: Any, vocab_size: int):
        self._xgrammar = _xgrammar()
        try:
            info = self._xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
        except ValueError as error:
            raise InputError(f"xgrammar cannot read the target's tokenizer: {error}") from error
        self._compiler = self._xgrammar.GrammarCompiler(info)
        self._control = frozenset(i for i, text in enumerate(info.decoded_vocab) if any(byte < 0x20 for byte in text))
        self._vocab_size = vocab_size

    def constraint(self, grammar: Grammar, ends: Collection[int]) -> GrammarConstraint:
        """What holds one answer to a grammar; a token of `ends` may follow where the grammar is satisfied.

        Raises:
            InputError: a grammar that cannot be compiled, or no token that could end the answer.
        """
        if not ends:
            raise InputError("a grammar needs a token that ends the answer, but ignore_eos leaves none; leave it out.")
        if grammar.kind == "json_schema":
            check_schema(grammar.source)
        if grammar.kind == "regex":
            check_pattern(grammar.source)
        compile_kind = {
            # without free white space, in which a model may go on for ever
            "json_schema": lambda source: self._compiler.compile_json_schema(source, any_whitespace=False),
            "regex": self._compiler.compile_regex,
            "ebnf": self._compiler.compile_grammar,
        }[grammar.kind]
        try:
            compiled = compile_kind(grammar.source)
        except Exception as error:  # xgrammar raises several kinds, with a message for the user
            raise InputError(f"the {grammar.kind} grammar cannot be compiled: {_reason(error)}; correct it.") from error
        matcher = self._xgrammar.GrammarMatcher(compiled, override_stop_tokens=sorted(ends))
        # JSON has no control characters inside strings, which xgrammar lets pass where a length is given
        forbidden = self._control - frozenset(ends) if grammar.kind == "json_schema" else frozenset()
        constraint = GrammarConstraint(self._xgrammar, matcher, self._vocab_size, frozenset(ends), forbidden)
        if constraint.is_stuck:
            raise InputError(f"nothing can match the {grammar.kind} grammar {grammar.source[:60]!r}; correct it.")
        return constraint


class GrammarConstraint:
    """The state of one answer in its grammar."""

    def __init__(self, xgrammar: Any, matcher: Any, vocab_size: int, ends: frozenset[int], forbidden: frozenset[int]):
        self._xgrammar, self._matcher, self._vocab_size = xgrammar, matcher, vocab_size
        self._allowed = xgrammar.allocate_token_bitmask(1, vocab_size)
        self._forbidden, self._others = forbidden, _bits_without(forbidden, self._allowed)
        self._only_ends = ~_bits_without(ends, self._allowed)
        masks: dict[int, Tensor] = {}
        self._note(0, masks)
        self.is_stuck = torch.equal(masks[0], self._only_ends)
        """Whether no token can begin the answer."""

    def prune(self, tree: DraftTree) -> DraftTree:
        """The nodes that the grammar lets the answer reach; which tokens may follow each of them is noted."""
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        children: list[list[int]] = [[] for _ in range(len(tokens) + 1)]
        for node, parent in enumerate(parents, start=1):
            children[parent].append(node)
        masks: dict[int, Tensor] = {}
        self._walk(tokens, children, masks)
        kept = sorted(masks)
        self._allowed = torch.cat([masks[node] for node in kept])
        if len(kept) == len(tokens) + 1:
            return tree
        number = {node: i for i, node in enumerate(kept)}
        chosen = torch.tensor(kept[1:], dtype=torch.int64, device=tree.tokens.device) - 1
        moved = torch.tensor([number[parents[node - 1]] for node in kept[1:]], dtype=torch.int64, device=chosen.device)
        return DraftTree(tree.tokens[chosen], moved, tree.log_probs[chosen])

    def mask(self, logits: Float[Tensor, "m v"]) -> None:
        """Set the logits of forbidden tokens to -inf, in place, for the nodes that `prune` left.

        Fewer rows than those are the first of them; more are padding.
        """
        count = min(len(logits), len(self._allowed))
        kept, allowed = logits[:count], self._allowed[:count].to(logits.device)
        self._xgrammar.apply_token_bitmask_inplace(kept, allowed, vocab_size=min(self._vocab_size, logits.shape[-1]))

    def advance(self, tokens: list[int]) -> None:
        """Follow the answer by these tokens; those after its end are not looked at."""
        for token in tokens:
            if self._matcher.is_terminated() or not self._matcher.accept_token(token):
                return  # over, or stuck where nothing but an end was left

    def _walk(self, tokens: list[int], children: list[list[int]], masks: dict[int, Tensor]) -> None:
        """Depth first from the root; the matcher is where the path to the node at hand leads."""
        self._note(0, masks)
        ahead = [iter(children[0])]
        while ahead:
            child = next(ahead[-1], None)
            if child is None:
                ahead.pop()
                if ahead:
                    self._matcher.rollback(1)
            elif self._reaches(tokens[child - 1]):
                self._note(child, masks)
                ahead.append(iter(children[child]))

    def _note(self, node: int, masks: dict[int, Tensor]) -> None:
        masks[node] = self._xgrammar.allocate_token_bitmask(1, self._vocab_size)
        if not self._matcher.is_terminated():
            self._matcher.fill_next_token_bitmask(masks[node])
        masks[node] &= self._others
        if not bool(masks[node].any()):
            masks[node] = self._only_ends.clone()  # a grammar that leads nowhere from here

    def _reaches(self, token: int) -> bool:
        """Take a step of the walk, if the grammar lets it."""
        return token not in self._forbidden and not self._matcher.is_terminated() and self._matcher.accept_token(token)


def _bits_without(tokens: frozenset[int], like: Tensor) -> Tensor:
    """A bit mask, 32 tokens to a number, of all tokens but these."""
    bits = torch.ones(like.shape[-1] * 32, dtype=torch.int64)
    bits[list(tokens)] = 0
    weights = torch.tensor([1 << i for i in range(31)] + [-(1 << 31)])
    return (bits.view(-1, 32) * weights).sum(-1).to(like.dtype)[None]


def _reason(error: Exception) -> str:
    """The first line of what xgrammar says, without the time and the source line that it puts before."""
    said = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error).strip()) or type(error).__name__
    first = said.splitlines()[0].split(" The JSON string is:")[0].rstrip(".")
    return first if len(first) <= MAX_REASON else first[:MAX_REASON] + " ..."


def _xgrammar() -> Any:
    try:
        import xgrammar
    except ImportError as error:
        raise InputError("a grammar needs the package xgrammar; pip install 'paceline[grammar]'.") from error
    return xgrammar
