"""Keeps the labels of launches that `lint --labels` read, under a digest of everything that they may depend on.

These are the launch, the files that it names, the small files in its folder and the current one, the packages of its
environment with the folders of editable ones, the environment variables and attncheck itself. If a folder has too many
files, nothing is kept.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

import attncheck
from attncheck.core import codec
from attncheck.core.io.private_folder import (
    cache_folder,
    digest_facts,
    forget_oldest,
    list_variables,
    read_kept,
    replace_private_file,
)
from attncheck.core.results.labels import LabelledLaunch
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.probes.payload.model import files
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal import cutting

# Files that a launch may read, without its logs and checkpoints.
ENDINGS = (".py", ".jinja", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".txt", ".parquet", ".csv", ".tsv", ".model")
MAX_ENTRIES, MAX_DEPTH = 5000, 4
MAX_KEPT, MAX_BYTES = 100, 4 << 20


def find_path(snapshot: Snapshot, read: ReadLaunch, template: str, request: object) -> Path | None:
    """Return the file that keeps a launch's labels; None if nothing may be kept.

    `template` is the model or folder with another tokenizer, "" for the launch's own. `request` is what else decides.
    """
    folder = cache_folder(os.environ)
    if folder is None:
        return None
    launch = read.recognised.launch
    names = {word.text.rpartition("=")[2] for word in launch.words} | {setting.value for setting in read.job.settings}
    roots = {os.getcwd(), os.path.abspath(launch.folder), os.path.dirname(attncheck.__file__)}
    roots |= {os.path.join(launch.folder, os.path.expanduser(name)) for name in names if name and "\0" not in name}
    models = (files.find_model_folder(name).get("known") for name in (cutting.name_model(read), template))
    roots |= {os.path.abspath(folder) for folder in models if folder}
    others = (item for item in snapshot.distributions if item.editable and item.name != "attncheck")
    roots |= {os.path.expanduser(unquote(item.direct_url.removeprefix("file://"))) for item in others}
    states = _list_states(roots)
    if states is None:
        return None
    installed = sorted((item.name, item.version, item.location, item.record_sha256) for item in snapshot.distributions)
    texts = [source.text for source in (launch.source, launch.file) if source is not None]
    own = ([word.text for word in launch.words], texts, sorted(launch.environ.items()))
    facts = (template, request, own, list_variables(os.environ), states, snapshot.host.python_version, installed)
    return folder / f"labels-{digest_facts(facts)}.json"


def _list_states(roots: Iterable[str]) -> list[tuple[str, int, int]] | None:
    """Return the path, size and time of each file, and of the files in folders that a launch may read; or None."""
    states, scanned = [], 0
    written = [os.fstat(stream) for stream in (1, 2)]  # a report that is redirected into a file
    folders = [(root, 0) for root in sorted(roots)]
    while folders:
        path, depth = folders.pop()
        with contextlib.suppress(OSError):
            if not os.path.isdir(path):
                status = os.stat(path)
                if not any(os.path.samestat(status, own) for own in written):
                    states.append((path, status.st_size, status.st_mtime_ns))
                continue
            with os.scandir(path) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
            scanned += len(entries)
            if scanned > MAX_ENTRIES:
                return None
            if any(entry.name == "pyvenv.cfg" for entry in entries):  # an environment, whose packages count
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders += [(entry.path, depth + 1)] * (depth < MAX_DEPTH and not entry.name.startswith((".", "_")))
                elif entry.name.endswith(ENDINGS):
                    folders.append((entry.path, depth))
    return states


def read_labels(path: Path | None) -> LabelledLaunch | None:
    """Return the labels that a file keeps, None if it has none."""
    with contextlib.suppress(ValueError):
        return codec.loads(LabelledLaunch, read_kept(path, MAX_BYTES).decode())
    return None


def keep(path: Path | None, launch: LabelledLaunch) -> None:
    """Keep a launch's labels, and remove the oldest of too many files."""
    if path is None or launch.reason:
        return
    with contextlib.suppress(OSError):
        replace_private_file(path, codec.dumps(launch))
        forget_oldest(path.parent, "labels-*.json", MAX_KEPT)
