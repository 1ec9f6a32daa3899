"""Structured output: always of its form, and the same with drafting as without."""

import json
import random
import re
import sys

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.errors import InputError
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings, Grammar
from tiny_models import RandomTreeDrafter, tiny_target

xgrammar = pytest.importorskip("xgrammar")
from paceline.grammar import GrammarCompiler  # noqa: E402

EOS, VOCABULARY = 256, 257
#: A model of single bytes with random weights would write bytes that are no UTF-8.
NO_BROKEN_UTF_8 = {token: -100.0 for token in range(94, 256)}
LETTERS = [ord(c) - 33 for c in '{}[]":,truefalsn0123456789abc']  # the byte tokens of printable characters


@pytest.fixture(scope="module")
def tokenizer():
    """Its tokens are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama", vocab_size=VOCABULARY, eos_token_id=EOS, max_position_embeddings=512)


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return GrammarCompiler(tokenizer, VOCABULARY)


class LikelyDrafter(RandomTreeDrafter):
    """Random trees over the characters of JSON, so that a grammar lets many of their nodes live."""

    def _tree(self, request):
        tree = super()._tree(request)
        tokens = torch.tensor([LETTERS[t % len(LETTERS)] for t in tree.tokens.tolist()], dtype=torch.int64)
        pairs = list(zip(tree.parents.tolist(), tokens.tolist(), strict=True))
        return tree if len(set(pairs)) < len(pairs) else type(tree)(tokens, tree.parents, tree.log_probs)


def engine(target, tokenizer, grammars, drafts=True, max_batch=3):
    drafter = LikelyDrafter(VOCABULARY)
    parts = Parts(target, drafter, FixedPolicy(6, 24)) if drafts else Parts(target)
    return Engine(parts, tokenizer, max_batch, grammars=lambda: grammars)


def random_schema(rng, depth=0):
    """A schema whose shortest and longest instances are short."""
    kind = rng.choice(["integer", "boolean", "enum", "string", "null", *(["array", "object"] if depth < 2 else [])])
    if kind == "integer":
        return {"type": "integer", "minimum": 0, "maximum": rng.randint(1, 120)}
    if kind == "enum":
        return {"enum": rng.sample(["red", "blue", 3, 4.5, True, None], rng.randint(1, 4))}
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(1, 4)}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": 1, "maxItems": rng.randint(1, 2)}
    if kind == "object":
        return random_object(rng, depth + 1)
    return {"type": kind}


def random_object(rng, depth=0):
    names = rng.sample(["a", "b", "name", "count", "tags"], rng.randint(1, 3))
    properties = {name: random_schema(rng, depth) for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def is_valid(value, schema):
    if "enum" in schema:
        return any(value == e and type(value) is type(e) for e in schema["enum"])
    kind = schema["type"]
    if kind == "object":
        fields = schema["properties"]
        return (
            isinstance(value, dict)
            and value.keys() == fields.keys()
            and all(is_valid(value[name], fields[name]) for name in fields)
        )
    if kind == "array":
        sized = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return sized and all(is_valid(item, schema["items"]) for item in value)
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    return value is None if kind == "null" else isinstance(value, bool)


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_random_schemas_are_kept_with_drafting(target, tokenizer, grammars, count):
    rng = random.Random(0)
    drafted = engine(target, tokenizer, grammars, max_batch=8)
    schemas = [random_object(rng) for _ in range(count)]
    requests = []
    for i, schema in enumerate(schemas):
        grammar = Grammar("json_schema", json.dumps(schema))
        asked = GenerationSettings(
            max_tokens=300, temperature=0.9 * (i % 2), seed=i, grammar=grammar, logit_bias=NO_BROKEN_UTF_8
        )
        requests.append(drafted.submit([i % 200, 3, 5], asked))
    drafted.run()
    for request, schema in zip(requests, schemas, strict=True):
        assert request.finish_reason == "stop"
        text = "".join(piece.text for piece in request.pieces)
        assert is_valid(json.loads(text), schema), (text, schema)
    assert sum(r.statistics.accepted for r in requests) > count / 4


GRAMMARS = [
    Grammar("regex", r"[a-c]{3,9}-(yes|no)"),
    Grammar("ebnf", 'root ::= "<" word ">" ("," root)?\nword ::= [a-z] | [a-z] word'),
    Grammar("json_schema", '{"type": "array", "items": {"enum": [true, false]}, "minItems": 2, "maxItems": 6}'),
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: g.kind)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_are_constrained_plain_decodings(target, tokenizer, grammars, grammar, temperature):
    prompts = [[1, 2, 3], [70], [9, 9, 30, 31]]
    asked = [
        GenerationSettings(max_tokens=24, temperature=temperature, seed=i, grammar=grammar, frequency_penalty=0.1 * i)
        for i in range(3)
    ]
    drafted = engine(target, tokenizer, grammars)
    requests = [drafted.submit(p, s) for p, s in zip(prompts, asked, strict=True)]
    drafted.run()
    for request, settings in zip(requests, asked, strict=True):
        constraint = grammars.constraint(grammar, {EOS})
        assert request.tokens == plain_decode(target, request.prompt, settings, constraint)


def test_an_answer_that_is_complete_ends_and_can_end_nowhere_else(target, tokenizer, grammars):
    drafted = engine(target, tokenizer, grammars)
    asked = GenerationSettings(max_tokens=40, grammar=GRAMMARS[0])
    request = drafted.submit([5, 6], asked)
    drafted.run()
    text = "".join(piece.text for piece in request.pieces)
    assert request.finish_reason == "stop" and request.tokens[-1] == EOS
    assert re.fullmatch(GRAMMARS[0].source, text)


def test_forbidden_nodes_are_pruned_before_they_are_verified(target, tokenizer, grammars):
    drafted = engine(target, tokenizer, grammars, max_batch=1)
    constrained = drafted.submit([5, 6], GenerationSettings(max_tokens=12, grammar=GRAMMARS[0]))
    free = drafted.submit([5, 6], GenerationSettings(max_tokens=12))
    drafted.run()
    per_round = [r.statistics.drafted / r.statistics.rounds for r in (constrained, free)]
    assert per_round[0] < per_round[1] / 2


@pytest.mark.parametrize(
    ("grammar", "sentence"),
    [
        (Grammar("json_schema", "{nonsense"), "is no JSON"),
        (Grammar("regex", "(a"), "regex grammar cannot be compiled"),
        (Grammar("ebnf", "root ::= missing"), "ebnf grammar cannot be compiled"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_refused(target, tokenizer, grammars, grammar, sentence):
    with pytest.raises(InputError, match=sentence):
        engine(target, tokenizer, grammars).submit([1], GenerationSettings(grammar=grammar))


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"not": {"type": "string"}}, "has 'not'"),
        ({"type": "array", "uniqueItems": True, "items": {"enum": ["a"]}}, "has 'uniqueItems'"),
        ({"type": "array", "contains": {"const": 7}}, "has 'contains'"),
        ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, "has 'allOf'"),
        ({"if": True, "then": {"const": 1}}, "has 'if'"),
        ({"type": "integer", "multipleOf": 7}, "has 'multipleOf'"),
        ({"typo": "object"}, "has 'typo'"),
        ({"type": "string", "format": "nonsense"}, "format 'nonsense'"),
        ({"anyOf": [{"type": "string"}], "maxLength": 3}, "'maxLength' beside 'anyOf'"),
        ({"properties": {"a": {"items": {"oops": 1}}}}, "'items' has 'oops'"),
        ({"type": "string", "pattern": "^(?!x)"}, "has a lookaround"),
        ([1, 2], "is an object, true or false"),
        ({"properties": [1]}, "no object of schemas"),
        ({"anyOf": 3}, "no list of schemas"),
    ],
)
def test_what_a_schema_asks_beyond_what_is_enforced_is_refused_by_name(target, tokenizer, grammars, schema, sentence):
    asked = GenerationSettings(grammar=Grammar("json_schema", json.dumps(schema)))
    with pytest.raises(InputError, match=sentence) as caught:
        engine(target, tokenizer, grammars).submit([1], asked)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["a$b", "a^b", r"\ba", r"(a)\1", "(?=a)a", "(?<!b)a"])
def test_what_a_pattern_asks_beyond_what_is_enforced_is_refused(target, tokenizer, grammars, pattern):
    with pytest.raises(InputError, match="cannot be enforced"):
        engine(target, tokenizer, grammars).submit([1], GenerationSettings(grammar=Grammar("regex", pattern)))


@pytest.mark.parametrize("pattern", ["^a+$", r"a\$b", "[$^]a", r"\d{2}", "(a|b)"])
def test_plain_patterns_are_served(target, tokenizer, grammars, pattern):
    engine(target, tokenizer, grammars).submit([1], GenerationSettings(grammar=Grammar("regex", pattern)))


@pytest.mark.parametrize("grammar", [Grammar("regex", r"[^\s\S]"), Grammar("ebnf", "root ::= root")])
def test_a_grammar_that_nothing_can_match_is_refused(target, tokenizer, grammars, grammar):
    with pytest.raises(InputError, match="nothing can match"):
        engine(target, tokenizer, grammars).submit([1], GenerationSettings(grammar=grammar))


def test_the_reason_is_one_short_sentence(grammars):
    for source in ("{" + "x" * 5000, '{"type": "foo"}'):
        with pytest.raises(InputError) as caught:
            grammars.constraint(Grammar("json_schema", source), {EOS})
        assert len(str(caught.value)) < 320 and ".cc:" not in str(caught.value)


def test_what_a_grammar_cannot_go_with_is_refused(target, tokenizer, grammars):
    with pytest.raises(InputError, match="min_tokens is 3"):
        GenerationSettings(min_tokens=3, grammar=GRAMMARS[0])
    with pytest.raises(InputError, match="ignore_eos"):
        engine(target, tokenizer, grammars).submit([1], GenerationSettings(ignore_eos=True, grammar=GRAMMARS[0]))
    with pytest.raises(InputError, match="needs a tokenizer"):
        Engine(Parts(target)).submit([1], GenerationSettings(grammar=GRAMMARS[0]))
    with pytest.raises(InputError, match="kind is 'yaml'"):
        Grammar("yaml", "")


def test_without_the_package_the_sentence_says_what_to_install(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(InputError, match=r"paceline\[grammar\]"):
        GrammarCompiler(tokenizer, VOCABULARY)
