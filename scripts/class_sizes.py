"""Counts fields and methods of C++ classes, as this project writes them: no preprocessor, no parser, no guesses beyond."""

from __future__ import annotations

import re
from collections.abc import Iterator

CLASS = re.compile(r"\bclass\s+([\w:]+)\s*(?:final\s*)?(?::[^:{;][^{;]*)?\{")
NO_MEMBER = re.compile(r"(using|friend|static_assert|typedef|enum|class|struct|union|template\s*<[^>]*>\s*(class|struct))\b")
TEXT_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S)


def _end(text: str, at: int, pair: str) -> int:
    """Of what begins with pair[0] at `at`."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == pair[0]) - (text[place] == pair[1])
        if depth == 0:
            return place
    return len(text)


def _members(body: str) -> Iterator[str]:
    """Each declaration, with nothing in its parentheses and braces."""
    part, place = "", 0
    while place < len(body):
        letter = body[place]
        if letter in "{(":
            place = _end(body, place, "{}" if letter == "{" else "()")
            part += letter + body[place : place + 1]
            is_body = letter == "{" and ("(" in part or NO_MEMBER.match(part.strip()))
            if is_body and not body[place + 1 :].lstrip().startswith((";", ",")):
                yield part
                part = ""
        elif letter == ";":
            yield part
            part = ""
        else:
            part += letter
        place += 1


def _without_templates(text: str) -> str:
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return text


def _sizes(body: str) -> tuple[int, int]:
    fields = methods = 0
    for member in _members(body):
        text = re.sub(r"\b(public|private|protected)\s*:(?!:)", "", member).strip()
        if not text or NO_MEMBER.match(text) or text.endswith(("= default", "= delete")):
            continue
        text = _without_templates(text)
        name = text.split("=")[0]
        if "(" in name or "operator" in text:
            methods += 1
        elif not re.match(r"(inline\s+)?static\b", text):
            fields += 1 + name.count(",")
    return fields, methods


def class_sizes(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, fields and methods of each class that the source defines; without what is static, defaulted or deleted."""
    text = TEXT_OR_COMMENT.sub(lambda found: '""' if found[0][0] == '"' else "", source)
    for found in CLASS.finditer(text):
        opening = found.end() - 1
        yield found[1], *_sizes(text[opening + 1 : _end(text, opening, "{}")])
