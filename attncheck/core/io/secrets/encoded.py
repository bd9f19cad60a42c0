"""Reads base64, in which settings carry tokens and passwords: a registry's `auth`, a Kubernetes secret."""

from __future__ import annotations

import base64
import binascii

HEAD = 24  # characters that are decoded first: what is no text there, as digests are not, is none
MIN_LENGTH = 4


def decode_base64(text: str) -> str:
    """Return the printable ASCII text that `text` is the base64 of, in either alphabet; "" if it is of none."""
    digits = text.rstrip("=").replace("-", "+").replace("_", "/")
    digits = digits[:-1] if len(digits) % 4 == 1 else digits  # cut short
    return _decode(digits) if len(digits) > MIN_LENGTH and _decode(digits[:HEAD]) else ""


def _decode(digits: str) -> str:
    try:
        decoded = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        return ""
    return decoded if decoded.replace("\n", "").replace("\t", "").isprintable() else ""
