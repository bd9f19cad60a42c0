"""Finds watched packages inside zip archives on sys.path; these packages are not examined further.

An archive gets onto sys.path through a `.pth` file or PYTHONPATH; the entry may name a folder inside it
(`packages.zip/lib`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from . import metadata, watched


def find_archived() -> dict[str, str]:
    """Return the archive that contains each watched module or distribution; the first on sys.path counts."""
    archived: dict[str, str] = {}
    for entry in sys.path:
        for name in _list_names(entry):
            archived.setdefault(name, entry)
    return archived


def _list_names(entry: str) -> Iterator[str]:
    """Yield the watched names in the archive that an entry of sys.path names, or in the named folder of an archive."""
    archive, inside = entry, ""
    while archive and not os.path.exists(archive) and os.path.dirname(archive) != archive:
        inside, archive = os.path.join(os.path.basename(archive), inside), os.path.dirname(archive)
    if not os.path.isfile(archive):
        return
    import zipfile

    try:
        with zipfile.ZipFile(archive) as opened:
            names = opened.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return
    tops = {name[len(inside) :].split("/")[0] for name in names if name.startswith(inside)}
    for top in sorted(tops):
        stem, suffix = os.path.splitext(top)
        if suffix in (".dist-info", ".egg-info"):
            name = metadata.normalise_name(metadata.split_stem(stem)[0])
            if watched.is_watched(name):
                yield name
        elif suffix in ("", ".py", ".pyc") and stem in watched.IMPORT_PROVIDERS:
            yield stem
