"""Masks secrets in text: tokens known by their shape, values known by their name, and values seen elsewhere by name.

`mask_secrets(text)` is applied once, where text leaves the program (`outgoing`); nothing else hides secrets. Only
the value goes: `WANDB_API_KEY=…`, `https://…@host`. Tokens of known services are in `shapes`, names that promise a
secret in `names`, what a value must look like in `values`, how names and values are written next to each other in
`assignments`, and commands that take a secret without a name in `commands`; base64 of any of them is one (`encoded`).
Where a structure is read (a launch, the environment), `remember_setting(name, value)` keeps a secret
value, which is then masked wherever it turns up, however it is quoted there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attncheck.core.io.secrets import assignments, commands, shapes
from attncheck.core.io.secrets.encoded import decode_base64
from attncheck.core.io.secrets.names import MASK, compile_once
from attncheck.core.io.secrets.values import is_distinctive, is_secret_value

__all__ = [
    "MASK",
    "forget_secrets",
    "is_masked",
    "mask_secrets",
    "remember_setting",
    "remember_settings",
]

_BASE64 = r"(?<![\w+/-])[A-Za-z0-9+/_-]{20,}={0,2}"  # the shortest token is this long in base64
MIN_LENGTH = 8  # a shorter text cannot contain a name with its value
_remembered: dict[str, None] = {}  # all spellings of the secret values


def mask_secrets(text: str) -> str:
    """Return `text` with every secret in it replaced by `MASK`, in time linear in the text's length."""
    if len(text) < MIN_LENGTH:
        return text
    for spelling in _remembered:
        if spelling in text:
            text = text.replace(spelling, MASK)
    text = commands.mask_commands(assignments.mask_assignments(shapes.mask_shapes(text)))
    return compile_once(_BASE64).sub(_mask_encoded, text)


def _mask_encoded(match: re.Match[str]) -> str:
    decoded = decode_base64(match[0])
    return MASK if decoded and mask_secrets(decoded) != decoded else match[0]


def is_masked(before: str, after: str) -> bool:
    """Return whether masking removed anything from a text."""
    return before != after and MASK in after


def remember_setting(name: str, value: str, raw: str = "") -> None:
    """Remember the value if its name makes it a secret, so that it is masked everywhere.

    `raw` is the user's spelling, with quotes. A value that may be an ordinary word elsewhere is not remembered.
    """
    if is_secret_value(name, value):
        for line in filter(is_distinctive, value.splitlines()):  # a key of several lines is printed line by line
            _remembered.update(dict.fromkeys(_iter_spellings(line)))
        inner = raw.strip("\"'")
        if is_distinctive(inner) and inner != value:
            _remembered[inner] = None


def remember_settings(settings: Mapping[str, str]) -> None:
    """Remember the secret values among variables or settings, by name."""
    for name, value in settings.items():
        remember_setting(name, value)


def forget_secrets() -> None:
    """Forget every remembered value; for tests."""
    _remembered.clear()


def _iter_spellings(value: str) -> Iterator[str]:
    """Yield a value in its JSON, Python, shell, XML and URL spellings."""
    import json  # imported here, because most processes know no secret
    from html import escape
    from shlex import quote
    from urllib.parse import quote as quote_url

    yield value
    yield json.dumps(value)[1:-1]
    yield repr(value)[1:-1]
    yield quote(value).strip("'")
    yield escape(value)
    yield quote_url(value, safe="")
    yield quote_url(value)
