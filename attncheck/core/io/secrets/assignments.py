"""Masks values whose names indicate a secret, in every way that people write a name next to its value.

`NAME=value`, `name: value`, `--name value`, `--name=value`, `"name": "value"`, `("NAME", "value")`, `setenv NAME
value`, `name: NAME` with `value: …` below it, quoted or not, also across a continued line or in a diff.

A text is searched for the words that occur in names of secrets. The name around each word is read, then the value after
it. Each step looks at a bounded piece of text, so the time is linear in the text's length.
"""

from __future__ import annotations

import re

from attncheck.core.io.secrets.names import MASK, compile_once, is_password_name, rate_name
from attncheck.core.io.secrets.values import is_harmless, is_secret_value

# In lower case. Every name that `names.rate_name` rates contains one of them.
_MARKERS = (
    *("token", "secret", "pass", "pw", "key", "auth", "cred", "hook"),
    *("cookie", "wandb", "-ak", "-sk", "_ak", "_sk", "signature", "sig="),
)
_ANY_MARKER = "|".join(_MARKERS)  # no marker contains a character with a special meaning in expressions
_NAME_REACH = 100  # characters before a marker that may belong to its name
# At most REACH characters are examined; the rest of a longer secret is masked too (`_LONG_END`).
_VALUE = r"""
    (?P<value> \\{1,3}"[^"\\\n]{0,200} | "(?:[^"\\\n]|\\.){0,200} | '[^'\n]{0,200}
      | (?:[^\s"'`;|&<>,(){}\[\]\\$]|\\[^\sn]|,(?=[^\s,"'=:]{1,80}(?:[\s"']|\Z))
        |\$\{[^{}\n]{0,200}\}|\$\([^()\n]{0,200}\)|\$|\{\{[^{}\n]{0,200}\}\}|\{\w{0,60}\}
        |<[\w -]{0,60}>|\[[\w -]{0,60}\])
        {1,200}(?:"[^"\s,]{0,200}"|'[^'\s,]{0,200}'|[^\s"'`;|&<>,(){}\[\]\\]){0,20})
"""
_AFTER = rf"""(?x)
    (?P<separator>
        (?:\\{{0,3}}["'])?\]?\s{{0,8}}(?:=>|:=|=(?!=)|:(?!=|//))[^\S\n]{{0,20}}
          (?:[|>][+-]?[^\S\n]{{0,8}}\n[-+\ ]?\s{{0,40}})?
      | (?:\\{{0,3}}["'])?,?\s{{0,60}}(?:[-+]\s{{1,40}})?(?:\\{{0,3}}["'])?value(?:\\{{0,3}}["'])?:\s{{0,8}}
      | (?P<spaces>(?:[^\S\n]|\\\n[-+\ ]?){{1,40}})
      | (?P<comma>["'],\s{{0,8}}(?=["']))
    )
    (?P<scheme>(?i:Bearer|Basic|Token|Bot|ApiKey|Key)\s{{1,4}})?
    {_VALUE}
"""
_WORDS = r"[^\W\d]+(?:-[^\W\d]+)*"
_REST = r"[\w.-]{0,80}"
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-+")
_COMMAND_BEFORE = r"(?:\bsetenv|\bENV|\blogin\s{1,4}\S{1,60}|\bset)\s{1,8}\Z"
_LINE_START = r"[-+ ]?\s*(?:-\s+)?[\"']?"
_LONG_END = {'"': r'[^"\n]*', "'": r"[^'\n]*", "": r"[^\s\"']*"}  # by the quote that starts the value
REACH = 200


def mask_assignments(text: str) -> str:
    """Return `text` with the values of secret names masked."""
    if not any(separator in text for separator in "=: ,"):
        return text
    lower_text = text.lower()
    if not any(marker in lower_text for marker in _MARKERS):
        return text
    if len(lower_text) != len(text):  # some capitals have longer lower-case forms; offsets must agree
        lower_text = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    parts: list[str] = []
    done = name_end = 0
    for hit in compile_once(_ANY_MARKER).finditer(lower_text):
        if hit.start() < max(done, name_end):
            continue  # inside a masked value, or inside a name that was already read
        start = _find_name_start(text, hit.start(), max(done, name_end))
        name_end = compile_once(_REST).match(text, hit.end()).end()  # type: ignore[union-attr]  # it matches nothing too
        span = _find_secret(text, start, name_end) if rate_name(text[start:name_end]) else None
        if span is not None:
            parts += (text[done : span[0]], MASK)
            done = span[1]
    return "".join(parts) + text[done:]


def _find_name_start(text: str, start: int, floor: int) -> int:
    limit = max(floor, start - _NAME_REACH)
    while start > limit and text[start - 1] in _NAME_CHARACTERS:
        start -= 1
    return start


def _find_secret(text: str, start: int, name_end: int) -> tuple[int, int] | None:
    """Return the position of the secret after a name, without its quotes; None if there is none."""
    match = compile_once(_AFTER).match(text, name_end)
    if match is None:
        return None
    name, value, (begin, end) = text[start:name_end], match["value"], match.span("value")
    is_flag = name.startswith("-") and (start == 0 or text[start - 1] in " \t\n\"'[,")
    if match["spaces"] and (value.startswith("-") or not (is_flag or _follows_command(text, start))):
        return None
    opening = len(value) - len(value.lstrip("\\\"'")) if value[:1] in "\\\"'" else 0
    if opening == 0 and ":" in match["separator"] and _begins_line(text, start):
        end = _end_of_scalar(text, begin, end, name)
    if opening == 0 and text[end : end + 1] in ("(", "[") and value.replace(".", "").replace("_", "").isalnum():
        return None  # a call or an item, such as getpass()
    begin += opening
    if (match["comma"] or _is_prose(text, start, match)) and compile_once(_WORDS).fullmatch(text, begin, end):
        return None  # a list of names, or a sentence: the words after "secret: …"
    if not _is_secret(name, text[begin:end], is_flag or bool(match["scheme"])):
        return None
    if end - begin >= REACH:
        end = compile_once(_LONG_END[text[begin - 1] if opening else ""]).match(text, end).end()  # type: ignore[union-attr]
    return begin, end


def _is_prose(text: str, start: int, match: re.Match[str]) -> bool:
    """Return whether a name and a colon may be part of a sentence: not quoted, and not first in a line or list."""
    is_plain = match["separator"].strip(" ") == ":" and not _begins_line(text, start)
    return is_plain and text[start - 1 : start] not in tuple("{[(,;&?\"'")


def _follows_command(text: str, start: int) -> bool:
    return compile_once(_COMMAND_BEFORE).search(text, max(0, start - 80), start) is not None


def _begins_line(text: str, start: int) -> bool:
    line_start = text.rfind("\n", max(0, start - 200), start) + 1
    return (line_start > 0 or start < 200) and compile_once(_LINE_START).fullmatch(text, line_start, start) is not None


def _end_of_scalar(text: str, begin: int, end: int, name: str) -> int:
    """Return the end of a plain YAML scalar: the end of its line if that is one word or a password."""
    line_end = text.find("\n", begin, begin + REACH)
    line = text[begin : line_end if line_end >= 0 else begin + REACH]
    scalar = line.split(" #", 1)[0].rstrip(" \r\t,}")
    return begin + len(scalar) if len(scalar) > end - begin and (" " not in scalar or is_password_name(name)) else end


def _is_secret(name: str, value: str, is_explicit: bool) -> bool:
    """Return whether a value is secret. Any value of the flag `--token` is; other "tokens" may be pieces of text."""
    if is_secret_value(name, value):
        return True
    return is_explicit and rate_name(name) in ("strong", "likely") and not is_harmless(name, value)
