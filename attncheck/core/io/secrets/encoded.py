"""Reads base64, which settings use for tokens and passwords: a registry's `auth`, a Kubernetes secret."""

from __future__ import annotations

import base64
import binascii

HEAD = 24  # characters decoded first: if they are not text, as in a digest, none of it is
MIN_LENGTH = 4


def decode_base64(text: str) -> str:
    """Return the printable ASCII text that `text` encodes in base64, in either alphabet; "" if it encodes none."""
    digits = text.rstrip("=").replace("-", "+").replace("_", "/")
    digits = digits[:-1] if len(digits) % 4 == 1 else digits  # a truncated group
    return _decode(digits) if len(digits) > MIN_LENGTH and _decode(digits[:HEAD]) else ""


def _decode(digits: str) -> str:
    try:
        decoded = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        return ""
    return decoded if decoded.replace("\n", "").replace("\t", "").isprintable() else ""
