"""Reads the user's files for the gate (launch files, models' configurations) and remembers what it read.

An answer that is kept for the next start is valid while all of them are unchanged.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from attncheck.core.facts import Fact
from attncheck.core.io.errors import AttncheckError
from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.core.launch import COMMAND, Source
from attncheck.core.model import Model
from attncheck.doctor.probes import model as model_probe

MAX_BYTES = 4 << 20  # files that start or configure a job are a few kB
MAX_MODEL_BYTES = 20 << 20


class Inputs:
    """Reads files and models, and remembers their digests: `files` by path, `models` by name."""

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self.files: dict[str, str] = {}
        self.models: dict[str, str] = {}
        self._folders = [Path(), *(Path(source.name).parent for source in sources if source.name not in (COMMAND, "-"))]
        self._sources = {source.name: source for source in sources}
        for source in sources:
            self._remember(source.name)

    def read_file(self, name: str) -> Source | None:
        """Return a file that a launch names: relative to the working directory, or next to the script that names it."""
        from attncheck.lint import launches

        if name in self._sources:
            return self._sources[name]
        for folder in dict.fromkeys(self._folders):
            path = str(folder / name)
            self._remember(path)  # a missing file may exist tomorrow
            if path != "-" and os.path.isfile(path):  # standard input may belong to the command
                with suppress(AttncheckError):
                    return launches.read_source(path, pipes=False)
        return None

    def read_model(self, name: str) -> Fact[Model]:
        """Return a model by its folder or its name in the local cache; nothing is run or downloaded."""
        self.models[name] = digest_model(name)
        return model_probe.read_model(name)

    def _remember(self, path: str) -> None:
        if path not in (COMMAND, "-"):
            self.files[path] = digest_file(path)


def read_small_file(path: str) -> bytes | None:
    """Return the bytes of a regular file; None if it is not one, cannot be read or is too large."""
    try:
        return read_bounded(path, MAX_BYTES)
    except CannotRead:
        return None


def digest_file(path: str) -> str:
    """Return the digest of a file's bytes, "" if the file does not exist."""
    data = read_small_file(path)
    return "" if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


def digest_model(name: str) -> str:
    """Return the digest of the model files that are read: small JSON files and its code; "" if there are none."""
    from attncheck.doctor.probes.payload.model import files

    folder = files.find_model_folder(name).get("known")
    if folder is None:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for path in _model_files(str(folder)):
        with suppress(CannotRead):
            data = read_bounded(path, MAX_MODEL_BYTES)
            digest.update(path.name.encode("utf-8", "surrogateescape") + b"\0" + data)
    return digest.hexdigest()


def _model_files(folder: str) -> Iterator[Path]:
    with suppress(OSError):
        for path in sorted(Path(folder).iterdir()):
            if path.suffix in (".json", ".py") and not path.name.startswith("tokenizer.") and path.is_file():
                yield path
