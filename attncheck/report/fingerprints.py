"""What makes a finding the same one tomorrow: a digest that measured numbers, addresses and folders do not move.

The baseline and SARIF's `partialFingerprints` share it. Counted are the code, the subject, the message, and the names
of the files that the user wrote it in; not the line, which moves with every edit above it, and not the severity.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from attncheck.core.findings import Finding
from attncheck.report.locations import holds_requirements

VERSION = 1  # of this recipe: another recipe is another key, so that old digests are not compared with new ones
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
FOLDER = re.compile(r"(?<![\w/.])(?:~|\.{0,2})/(?:[^\s/'\":,;()]+/)+|\b[A-Za-z]:\\(?:[^\s\\'\":,;()]+\\)+")
# A number that stands alone, with its sign, decimals and exponent, or a version; not the digits of a name:
# "flash_attention_2", "sm_90", "qwen2", "cuda:0", "fwd-128".
NUMBER = re.compile(r"(?<![\w.:-])[-+±]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?![\w-])", re.IGNORECASE)
VERSIONED = re.compile(r"(?<![\w.:-])v?\d+(?:\.\d+)+(?:[-+.]?\w+)*")


def fingerprint(finding: Finding) -> str:
    """Return the digest of a finding: 64 hexadecimal digits, equal wherever the same thing is wrong."""
    parts = (finding.code, _steady(finding.subject), settled(finding.message), *sorted(set(_files(finding))))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def settled(message: str) -> str:
    """Return a message with what varies from run to run and machine to machine written as "#"."""
    return NUMBER.sub("#", VERSIONED.sub("#", _steady(message)))


def _steady(text: str) -> str:
    """Return text on one line without memory addresses and without the folders that files lie in."""
    return FOLDER.sub("", ADDRESS.sub("#", " ".join(text.split())))


def _files(finding: Finding) -> Iterator[str]:
    """Yield the names of the files it was written in; an anchor in a list of requirements is only a guess of ours."""
    for place in finding.locations:
        if place.source and not holds_requirements(place.source):
            yield PurePosixPath(place.source.replace("\\", "/")).name
