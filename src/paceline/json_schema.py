"""Which JSON schemas can be held to: every keyword of them must be one that the grammar enforces.

What xgrammar does not know it leaves out, and the answer would break the schema without a word. So a schema with
another keyword, with a keyword beside one that hides it, or with a pattern that is not a plain regular expression is
refused by name; a misspelt keyword is among them.
"""

from __future__ import annotations

import json
import re
from typing import Any

from paceline.errors import InputError

_NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_NOTES |= {"$schema", "$id", "$comment", "$defs", "definitions"}
_KNOWN = {"type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"}
_KNOWN |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "format"}
#: Where one of these stands, nothing else of the schema is looked at.
_ALONE = ("$ref", "anyOf", "oneOf", "enum", "const")
_FORMATS = {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"}
_FORMATS |= {"uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}


def check_schema(source: str) -> None:
    """Refuse a schema that could not be held to.

    Raises:
        InputError: no JSON, or something in it that cannot be enforced, by name.
    """
    try:
        schema = json.loads(source)
    except ValueError as error:
        raise InputError(f"the JSON schema {source[:60]!r} is no JSON ({error}); correct it.") from error
    _check(schema, "the schema")


def check_pattern(pattern: str) -> None:
    """Refuse anchors in the middle, lookaround, boundaries and backreferences, which would be left out.

    Raises:
        InputError: one of them, by name.
    """
    plain = re.sub(r"\[(\\.|[^\]\\])*\]", "x", pattern)  # classes hold no anchors
    for name, found in (
        ("a lookaround", re.search(r"\(\?(=|!|<=|<!)", plain)),
        ("a boundary or backreference", re.search(r"(?<!\\)(\\\\)*\\[bBAzZ1-9]", plain)),
        ("an anchor in the middle", re.search(r"(?<!^)(?<!\\)\^|(?<!\\)\$(?!$)", plain)),
    ):
        if found:
            raise InputError(f"the pattern {pattern[:60]!r} has {name}, which cannot be enforced; leave it out.")


def _check(schema: Any, place: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise InputError(f"{place} is {json.dumps(schema)[:40]}, but a JSON schema is an object, true or false.")
    alone = [name for name in _ALONE if name in schema]
    allowed = _NOTES | (set(alone[:1]) | ({"type"} if alone[0] in ("enum", "const") else set()) if alone else _KNOWN)
    for name in schema:
        if name not in allowed:
            beside = f" beside {alone[0]!r}" if alone and name in (_KNOWN | set(_ALONE)) else ""
            raise InputError(f"{place} has {name!r}{beside}, which cannot be enforced; leave it out.")
    if "pattern" in schema:
        check_pattern(str(schema["pattern"]))
    if schema.get("format") is not None and schema["format"] not in _FORMATS:
        raise InputError(f"{place} has the format {schema['format']!r}, which cannot be enforced; leave it out.")
    for part, where in _parts(schema, place):
        _check(part, where)


def _parts(schema: dict[str, Any], place: str) -> list[tuple[Any, str]]:
    """The schemas inside a schema."""
    found: list[tuple[Any, str]] = []
    for name in ("properties", "$defs", "definitions"):
        inner = schema.get(name, {})
        if not isinstance(inner, dict):
            raise InputError(f"{place} has {name!r} that is no object of schemas; correct it.")
        found += [(part, f"{name} {key!r}") for key, part in inner.items()]
    for name in ("anyOf", "oneOf", "prefixItems"):
        inner = schema.get(name, [])
        if not isinstance(inner, list):
            raise InputError(f"{place} has {name!r} that is no list of schemas; correct it.")
        found += [(part, f"a part of {name!r}") for part in inner]
    return found + [(schema[name], f"{name!r}") for name in ("items", "additionalProperties") if name in schema]
