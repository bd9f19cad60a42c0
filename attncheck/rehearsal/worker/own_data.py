"""Writes the first rows of the user's data into a rehearsal's files of the same names, with each row's tokens.

A launch names a file, a folder of files, or a repository with a snapshot in the Hub's local cache. Nothing is
downloaded, and the original data are not changed.
"""

import csv
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from attncheck.smoke.worker.models.architectures import Unbuildable

FILE = "rows.json"  # next to the model: the tokens of each row's texts
MAX_ROWS = 500  # per split
MAX_TEXT = 4096  # tokens of a text that are used to identify it
MAX_CHARACTERS = 8 * MAX_TEXT
MAX_JSON_BYTES = 1 << 30  # for a file with a single array, which is read whole
OTHER_SPLITS = re.compile(r"test|val|dev|eval", re.IGNORECASE)
DESCRIPTIONS = ("README.md", "dataset_info.json", "dataset_infos.json")  # files that describe a folder's data
REPAIR = "--real-data downloads nothing: name a local file or folder, or remove --real-data"
MAX_WORDS, MAX_FILES = 4000, 20  # that a tokenizer gets
WORD = re.compile(r"\w+")
Row = Any  # an object, or a line of text
Keep = Callable[[Row], bool]


def keep_any(row: Row) -> bool:
    """Return True."""
    return True


def find_data(name: str) -> Path:
    """Return the file or folder of the data that a launch names. Raises `Unbuildable` if it is not available here."""
    from attncheck.doctor.probes.payload.hub import find_cache_folder
    from attncheck.workers.inside.paths import user_path

    path = Path(user_path(name))
    if path.exists():
        return path
    repository = Path(find_cache_folder()) / f"datasets--{name.strip('/').replace('/', '--')}"
    if name.count("/") == 1 and ".." not in name and (repository / "refs" / "main").is_file():
        snapshot = repository / "snapshots" / (repository / "refs" / "main").read_text().strip()
        if snapshot.is_dir():
            return snapshot
    raise Unbuildable(f"{name} is neither a local file or folder nor in the Hugging Face cache; {REPAIR}")


def lay_data(name: str, target: Path, keep: Keep = keep_any) -> list[Row]:
    """Write the first rows of the data into the folder `target`, under their files' names, and return them.

    Rows that `keep` refuses are left out. Raises `Unbuildable` if they are not available here, or of an unknown kind.
    """
    source = find_data(name)
    if source.is_file():
        return _cut_file(source, target / source.name, MAX_ROWS, keep)
    files = [path for path in sorted(source.rglob("*")) if path.suffix in CUTS and path.name not in DESCRIPTIONS]
    if not files:
        kinds = sorted({path.suffix for path in source.rglob("*") if path.is_file() and path.suffix})
        others = f", but {', '.join(kinds[:4])}" if kinds else ""
        raise Unbuildable(f"{source} has no file of type {_list_kinds()}{others}; {REPAIR}")
    rows: list[Row] = []
    room = {False: MAX_ROWS, True: MAX_ROWS}
    for path in files:
        is_other = bool(OTHER_SPLITS.search(path.name))
        if room[is_other] <= 0:
            continue
        cut = target / path.relative_to(source)
        cut.parent.mkdir(parents=True, exist_ok=True)
        own = _cut_file(path, cut, room[is_other], keep)
        room[is_other] -= len(own)
        rows += own
    for name in DESCRIPTIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    return rows


def _list_kinds() -> str:
    return ", ".join(CUTS)


def _cut_file(source: Path, target: Path, limit: int, keep: Keep) -> list[Row]:
    cut = CUTS.get(source.suffix)
    if cut is None:
        raise Unbuildable(f"{source}: --real-data takes files of type {_list_kinds()}")
    try:
        rows = cut(source, target, limit, keep)
    except (OSError, ValueError, csv.Error) as error:
        raise Unbuildable(f"{source} cannot be read: {(str(error) or repr(error)).splitlines()[0]}") from None
    if not rows:
        raise Unbuildable(f"{source} has no rows{'' if keep is keep_any else ' that fit into a row of the test'}")
    return rows


def _cut_lines(source: Path, target: Path, limit: int, keep: Keep) -> list[Row]:
    """Shorten a file of JSON objects, one per line, to the first rows."""
    with source.open(encoding="utf-8") as stream:
        lines = list(islice((line for line in stream if line.strip()), limit))
    lines = [line for line in lines if keep(json.loads(line))]
    rows = [json.loads(line) for line in lines]
    target.write_text("".join(line if line.endswith("\n") else f"{line}\n" for line in lines), encoding="utf-8")
    return rows


def _cut_json(source: Path, target: Path, limit: int, keep: Keep) -> list[Row]:
    """Shorten a JSON file to the first rows: an array, an object with one, or one object per line."""
    if _has_object_lines(source):
        return _cut_lines(source, target, limit, keep)
    if source.stat().st_size > MAX_JSON_BYTES:
        raise ValueError("it is one array of more than 1 GiB: convert it to .jsonl")
    content = json.loads(source.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        content = {
            name: [*filter(keep, value[:limit])] if isinstance(value, list) else value
            for name, value in content.items()
        }
        rows = next((value for value in content.values() if isinstance(value, list)), [])
    else:
        rows = content = [*filter(keep, content[:limit])]
    target.write_text(json.dumps(content), encoding="utf-8")
    return rows


def _has_object_lines(source: Path) -> bool:
    """Return whether a file's first line is an object that is a row, not the whole file."""
    with source.open(encoding="utf-8") as stream:
        first, second = [*islice((line for line in stream if line.strip()), 2), "", ""][:2]
    try:
        content = json.loads(first)
    except ValueError:
        return False
    return isinstance(content, dict) and bool(second or not any(isinstance(part, list) for part in content.values()))


def _cut_parquet(source: Path, target: Path, limit: int, keep: Keep) -> list[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError("pyarrow is not installed in that environment") from None
    file = parquet.ParquetFile(source)
    batches = list(islice(file.iter_batches(batch_size=limit), 1))
    table = pyarrow.Table.from_batches(batches, file.schema_arrow)
    table = table.filter(pyarrow.array(map(keep, table.to_pylist()), pyarrow.bool_()))
    parquet.write_table(table, target)
    rows: list[Row] = table.to_pylist()
    return rows


def _cut_csv(source: Path, target: Path, limit: int, keep: Keep) -> list[Row]:
    with source.open(newline="", encoding="utf-8") as stream, target.open("w", newline="", encoding="utf-8") as output:
        delimiter = "\t" if source.suffix == ".tsv" else ","
        lines = list(islice(csv.reader(stream, delimiter=delimiter), limit + 1))
        lines = [*lines[:1], *(line for line in lines[1:] if keep(dict(zip(lines[0], line))))]
        csv.writer(output, delimiter=delimiter).writerows(lines)
    return [dict(zip(lines[0], line)) for line in lines[1:]]


def _cut_text(source: Path, target: Path, limit: int, keep: Keep) -> list[Row]:
    with source.open(encoding="utf-8") as stream:
        lines = list(filter(keep, islice(stream, limit)))
    target.write_text("".join(lines), encoding="utf-8")
    return [line for line in lines if line.strip()]


CUTS: Mapping[str, Callable[[Path, Path, int, Keep], list[Row]]] = {
    ".jsonl": _cut_lines,
    ".json": _cut_json,
    ".parquet": _cut_parquet,
    ".csv": _cut_csv,
    ".tsv": _cut_csv,
    ".txt": _cut_text,
}


def iter_texts(row: Row) -> Iterator[str]:
    """Yield the texts of a row, at any depth, in order."""
    if isinstance(row, str):
        yield row
    elif isinstance(row, Mapping):
        for value in row.values():
            yield from iter_texts(value)
    elif isinstance(row, (list, tuple)):
        for value in row:
            yield from iter_texts(value)


def count_words(paths: Sequence[str]) -> list[str]:
    """Return the most frequent words of files of rows."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path, paths[:MAX_FILES]):
            rows: list[Row] = []
            with suppress(Unbuildable):  # Arrow's files, and others that are no rows
                rows = _cut_file(path, Path(folder, path.name), MAX_ROWS, keep_any)
            counts.update(
                word for row in rows for text in iter_texts(row) for word in WORD.findall(text[:MAX_CHARACTERS])
            )
    return [word for word, _ in counts.most_common(MAX_WORDS)]


def _tokenize(tokenizer: Any, text: str) -> list[int]:
    tokens: list[int] = tokenizer(text[:MAX_CHARACTERS], add_special_tokens=False)["input_ids"]
    return tokens[:MAX_TEXT]


def save_rows(rows: list[Row], tokenizer: Any, folder: Path) -> None:
    """Write the tokens of each row's texts, each text tokenized separately, and the padding and EOS tokens."""
    tokens = [[_tokenize(tokenizer, text) for text in iter_texts(row) if text.strip()] for row in rows]
    content = {"rows": tokens, "padding": tokenizer.pad_token_id, "end": tokenizer.eos_token_id}
    (folder / FILE).write_text(json.dumps(content))
