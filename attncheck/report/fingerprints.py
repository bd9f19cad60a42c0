"""Fingerprints of findings: digests that do not depend on measured numbers, addresses and folders.

The baseline and SARIF's `partialFingerprints` share them. The digest covers the code, the subject, the message, and the
names of the user's files in which the finding is located. It does not cover the line, which moves with every edit above
it, or the severity. Secrets are masked first: a digest of one could be guessed, and a new key must not make a new
finding.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from attncheck.core.findings import Finding
from attncheck.core.io.outgoing import clean_text
from attncheck.report.locations import is_requirements_file

RECIPE_VERSION = 1  # another recipe has another key, so that old digests are not compared with new ones
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
FOLDER = re.compile(r"(?<![\w/.])(?:~|\.{0,2})/(?:[^\s/'\":,;()]+/)+|\b[A-Za-z]:\\(?:[^\s\\'\":,;()]+\\)+")
# A standalone number with its sign, decimals and exponent, or a version; not digits in a name: "flash_attention_2",
# "sm_90", "qwen2", "cuda:0", "fwd-128".
NUMBER = re.compile(r"(?<![\w.:-])[-+±]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?![\w-])", re.IGNORECASE)
VERSION_NUMBER = re.compile(r"(?<![\w.:-])v?\d+(?:\.\d+)+(?:[-+.]?\w+)*")


def compute_fingerprint(finding: Finding) -> str:
    """Return the digest of a finding: 64 hexadecimal digits, equal for the same fault."""
    parts = (
        finding.code,
        _strip_addresses_and_folders(clean_text(finding.subject)),
        normalize_message(clean_text(finding.message)),
        *sorted(set(_file_names(finding))),
    )
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def normalize_message(message: str) -> str:
    """Return a message in which values that vary between runs and machines are written as "#"."""
    return NUMBER.sub("#", VERSION_NUMBER.sub("#", _strip_addresses_and_folders(message)))


def _strip_addresses_and_folders(text: str) -> str:
    """Return text on one line, without memory addresses and without the folders of files."""
    return FOLDER.sub("", ADDRESS.sub("#", " ".join(text.split())))


def _file_names(finding: Finding) -> Iterator[str]:
    """Yield the names of the files in which a finding is located, except requirements files, which are only guesses."""
    for location in finding.locations:
        if location.source and not is_requirements_file(location.source):
            yield PurePosixPath(location.source.replace("\\", "/")).name
