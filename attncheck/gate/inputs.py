"""What a gate reads of the user's own: launch files and models' configurations; it remembers what it read.

An answer that was kept for the next start holds as long as all of it is unchanged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from attncheck.core.errors import AttncheckError
from attncheck.core.facts import Fact
from attncheck.core.launch import COMMAND, Source
from attncheck.core.model import Model
from attncheck.doctor.probes import model

LIMIT = 4 << 20  # bytes: what starts or configures a job is a few kB
MODEL_LIMIT = 20 << 20


class Inputs:
    """Reads files and models, and knows by digest what it read: `files` by path, `models` by name."""

    def __init__(self, given: Sequence[Source] = ()) -> None:
        self.files: dict[str, str] = {}
        self.models: dict[str, str] = {}
        self._folders = [Path(), *(Path(source.name).parent for source in given if source.name not in (COMMAND, "-"))]
        self._given = {source.name: source for source in given}
        for source in given:
            self._note(source.name)

    def file(self, name: str) -> Source | None:
        """Return a file that a launch names: from where we are, else beside the script that names it."""
        from attncheck.lint import launches

        if name in self._given:
            return self._given[name]
        for folder in dict.fromkeys(self._folders):
            path = str(folder / name)
            self._note(path)  # one that is not there now may be tomorrow
            if path != "-" and os.path.isfile(path):  # standard input may be the command's
                with suppress(AttncheckError):
                    return launches.source_of(path)
        return None

    def model(self, name: str) -> Fact[Model]:
        """Return a model by its folder or its name in the local cache; nothing of it is run or fetched."""
        self.models[name] = model_digest(name)
        return model.look(name)

    def _note(self, path: str) -> None:
        if path not in (COMMAND, "-"):
            self.files[path] = digest(content(path))


def content(path: str) -> bytes | None:
    """Return the bytes of a regular file; None where it is none, cannot be read or is too large."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > LIMIT:
            return None
        return Path(path).read_bytes()
    except (OSError, ValueError):
        return None


def digest(data: bytes | None) -> str:
    """Return the digest of a file's bytes, "" of one that is not there."""
    return "" if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


def model_digest(name: str) -> str:
    """Return the digest of what is read of a model: its small JSON files and its own code; "" where there is none."""
    from attncheck.doctor.probes.payload.model import files

    folder = files.folder_of(name).get("known")
    if folder is None:
        return ""
    marks = hashlib.blake2b(digest_size=16)
    for path in _small(str(folder)):
        marks.update(os.path.basename(path).encode("utf-8", "surrogateescape") + b"\0" + path_bytes(path))
    return marks.hexdigest()


def path_bytes(path: str) -> bytes:
    """Return the bytes of a file, b"" where it cannot be read."""
    with suppress(OSError):
        return Path(path).read_bytes()
    return b""


def _small(folder: str) -> Iterator[str]:
    with suppress(OSError):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if name.endswith((".json", ".py")) and not name.startswith("tokenizer.") and os.path.isfile(path):
                with suppress(OSError):
                    if os.path.getsize(path) <= MODEL_LIMIT:
                        yield path
