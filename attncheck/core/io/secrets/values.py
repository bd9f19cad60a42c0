"""Decides whether a value can be a secret: not a variable, a placeholder, a number, a path or an expression."""

from __future__ import annotations

from attncheck.core.io.secrets.encoded import decode_base64
from attncheck.core.io.secrets.names import (
    MASK,
    compile_once,
    is_login_name,
    is_password_name,
    is_webhook_name,
    rate_name,
)

_CONSTANTS_WORDS = """
true false yes no on off none null nil nan undefined empty default auto str string bool int float bytes object any
optional optional[str] secret token key password passwd api_key apikey todo tbd fake dummy test mock required
missing invalid basic bearer oauth2 hidden redacted masked not is was the a an and or of set unset given provided
read env public private local file prompt stdin keyring
"""
_CONSTANTS = frozenset(_CONSTANTS_WORDS.split())
_PLACEHOLDER = r"""(?ix) [<{\[(].*[>}\])]                                # <token>, {key}, [redacted]
    | (?:.*[^a-z])?(?:your?|yours|insert|replace|change|filled|paste|placeholder|redacted|example|dummy|sample|fake
      |changeme|change[_-]?me|my[_-]?(?:api[_-]?)?(?:key|token|secret|password)|here|todo|hidden|no[_-]key)(?:[^a-z].*)?
    | (?:[a-z]+[_-]?)??(.)\1{2,}[.\d]* | [x*.\-_]+ """  # xxx, ***, hf_xxxx
_VARIABLE = r"\$\{\{[^}]*\}\}|\{\{[^}]*\}\}|\$\{[^{}]*\}|\$\([^()]*\)|`[^`]*`|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%|\$[\d@*#?!]"
_REFERENCE = r"\$[({]|`|\{\{"  # an expansion that is truncated or nested
_NUMBER = r"[+-]?\d[\d_,]*(?:\.\d+)?(?:[eE][+-]?\d+)?%?"
_PATH = r"(?:[/~]|\.{1,2}/|[A-Za-z]:\\|file:)|.*\.(?:json|txt|key|pem|ya?ml|toml|env|cfg|conf|ini|py|sh|crt)$"
_EXPRESSION = r"(?:[A-Za-z_]\w{0,40}\.)+[A-Za-z_]\w{0,40}(?:[(\[].*)?|[A-Za-z_]\w{0,40}(?:\(.*\)|\[.*\])"
_VARIABLE_NAME = r"[A-Z][A-Z\d]*(?:_[A-Z\d]+)+"
_LONG_RUN = (
    r"(?<![\w/+])[A-Za-z\d/+]{40}(?![\w/+])"  # an AWS secret key may begin with a slash, as a path does
    r"|[\da-fA-F]{8}-[\da-fA-F]{4}-[\da-fA-F]{4}-[\da-fA-F]{4}-[\da-fA-F]{12}|[A-Za-z\d+=]{16,}"
)
_LOGIN = r"[^\s:/$]+:([^\s:/][^\s]+)"
_SIGN = r"[^\w\s./:,;=+()\[\]\"'-]"
_PLAIN = r"[\w.~+/=:-]+"
_DIGIT_RUN = r"\d+"
MAX_PLACEHOLDER = 200  # characters; a longer value is not a placeholder
AWS_LENGTH = 40
MIN_REMEMBERED = 8
LIKELY_LENGTH = 20


def is_secret_value(name: str, value: str) -> bool:
    """Return whether a value is a secret under this name."""
    strength = rate_name(name)
    if not strength:
        return False
    value = value.strip()
    if not value or value == MASK or is_harmless(name, value):
        return False
    if strength == "strong":
        return True
    if is_login_name(name) and holds_password(value):
        return True
    return is_random(value) or (strength == "likely" and _is_likely(value))


def is_harmless(name: str, value: str) -> bool:
    """Return whether a value cannot be a secret under any name: empty, a variable, a placeholder, a number, a path,
    code."""
    bare = compile_once(_VARIABLE).sub("", value).strip("\"' :/@-_,")
    if bare.lower() in _CONSTANTS or len(bare) < 2 or bare == MASK or compile_once(_REFERENCE).match(bare):
        return True
    if compile_once(_NUMBER).fullmatch(value):
        return not (is_password_name(name) and len(value) > 3)
    if "://" in value:
        return not is_webhook_name(name)
    if is_random(value):
        return False
    return bool(
        (len(bare) <= MAX_PLACEHOLDER and compile_once(_PLACEHOLDER).fullmatch(bare))
        or compile_once(_PATH).match(value)
        or compile_once(_EXPRESSION).fullmatch(value)
        or (compile_once(_VARIABLE_NAME).fullmatch(value) and rate_name(value))
        or _is_name_of_secret(name, value)
    )


def _is_name_of_secret(name: str, value: str) -> bool:
    """Return whether a value is itself a name, as in `token=hub_token`; `password=super_secret` is not one."""
    is_name = ("_" in value or "-" in value) and rate_name(value) == "strong"
    return is_name and (is_password_name(value) or not is_password_name(name))


def holds_password(value: str) -> bool:
    """Return whether a value is `user:password`, plain or in base64, and not host:port or numeric user ids."""
    match = compile_once(_LOGIN).fullmatch(decode_base64(value) or value)
    return match is not None and not match[1].isdecimal()


def is_random(value: str) -> bool:
    """Return whether a value contains 16 letters and digits in a row that form no word or number, or a UUID."""
    for run in compile_once(_LONG_RUN).findall(value):
        if len(run) == AWS_LENGTH and "/" in run and _has_mixed_letters(run):
            return True
        digits = sum(character.isdigit() for character in run)
        if 3 <= digits < len(run) and len(set(run)) > 7 and len(compile_once(_DIGIT_RUN).findall(run)) > 1:
            return True
    return False


def _has_mixed_letters(text: str) -> bool:
    return text != text.lower() and text != text.upper() and any(character.isdigit() for character in text)


def is_distinctive(value: str) -> bool:
    """Return whether a value is distinctive enough to mean the same everywhere: not a word, a number or a path."""
    if len(value) < MIN_REMEMBERED or "\n" in value:
        return False
    has_digit = any(character.isdigit() for character in value)
    has_letter = any(character.isalpha() for character in value)
    has_sign = compile_once(_SIGN).search(value) is not None
    return (has_letter and (has_digit or has_sign) and len(set(value)) > 5) or "hook" in value


def _is_likely(value: str) -> bool:
    """Return whether a value under a name such as `token` is a secret, not a piece of text."""
    if not compile_once(_PLAIN).fullmatch(value):
        return False
    has_digit = any(character.isdigit() for character in value)
    return (len(value) >= 6 and has_digit) or len(value) >= LIKELY_LENGTH
