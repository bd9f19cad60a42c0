"""The texts of a user's .txt, .jsonl or .parquet, one after the other; no more is read than is asked for."""

from __future__ import annotations

import importlib
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attncheck.smoke.worker.data.fields import FIELD_FLAG, KNOWN, BadData, Text, kind, text_of

PIECE = 1 << 16  # characters that a tokenizer gets at once; a longer line of a .txt is cut there
LONGEST_LINE = 32 << 20  # bytes of a .jsonl's line: it cannot be cut, only refused
ROWS = 32  # of a .parquet, read at once
MAGIC = {
    b"PAR1": "a Parquet file: give it the ending .parquet",
    b"\x1f\x8b": "gzip-compressed: unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "zstd-compressed: unpack it with unzstd",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\xff\xfe": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
}


def texts(path: str, field: str | None, say: Callable[[str], None]) -> Iterator[tuple[str, Text]]:
    """Yield where each text stands ("line 3 of chat.jsonl") and the text: a string or the messages of a conversation.

    `field` names the field to take; else the usual ones are tried. Raises `BadData`.
    """
    file = Path(path)
    reader = _reader(file)
    try:
        mode, size = _state(file)
        if not stat.S_ISREG(mode):
            raise BadData(f"{path} is not a file{_inside(file)}; name a .jsonl, .parquet or .txt file")
        if not size:
            raise BadData(f"{path} is empty; name a file with text in it")
        yield from reader(file, field, say)
    except UnicodeDecodeError:
        raise BadData(f"{path} is not UTF-8 text; convert it with iconv -t UTF-8") from None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}") from None


def _state(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except FileNotFoundError:
        raise BadData(f"there is no file {file}") from None
    except ValueError:  # a NUL in the name
        raise BadData(f"{str(file)!r} cannot be the name of a file") from None
    return found.st_mode, found.st_size


def _inside(file: Path) -> str:
    if not file.is_dir():
        return ""
    names = sorted(child.name for child in file.iterdir() if child.suffix.lower() in READERS)
    return " but a folder" + (f" with {names[0]} in it" if names else "")


def _reader(file: Path) -> Callable[[Path, str | None, Callable[[str], None]], Iterator[tuple[str, Text]]]:
    suffix = file.suffix.lower()
    if suffix == ".json":
        raise BadData(
            f"{file} ends in .json; make one object a line of it: jq -c '.[]' {file.name} > {file.stem}.jsonl"
        )
    if suffix not in READERS:
        ending = f"ends in {suffix}" if suffix else "has no ending that tells what it holds"
        raise BadData(f"{file} {ending}; smoke reads .jsonl, .parquet and .txt")
    return READERS[suffix]


def _paragraphs(file: Path, field: str | None, say: Callable[[str], None]) -> Iterator[tuple[str, Text]]:
    """Yield what stands between blank lines."""
    _look(file)
    if field:
        raise BadData(f"{file} has no fields; leave {FIELD_FLAG} out")
    lines: list[str] = []
    number = size = 0
    whole = True  # whether the last line was read to its end
    with file.open(encoding="utf-8-sig") as stream:
        while line := stream.readline(PIECE):
            number += whole
            if "\0" in line:
                raise BadData(f"{file} is binary: there is a zero byte in line {number}; name a text file")
            if whole and len(line) == PIECE and not line.endswith("\n"):
                say(f"line {number} of {file.name} has more than {PIECE} characters: it was cut there")
            whole = line.endswith("\n")
            size += len(line)
            if line.strip():
                lines.append(line)
            if lines and (not line.strip() or size >= PIECE):
                yield f"line {number} of {file.name}", "".join(lines).strip("\n")
            if not line.strip() or size >= PIECE:
                lines, size = [], 0
    if lines:
        yield f"line {number} of {file.name}", "".join(lines).strip("\n")


def _look(file: Path) -> None:
    """Raise `BadData` where the first bytes say that it is something else than text."""
    with file.open("rb") as stream:
        start = stream.read(4)
    for magic, told in MAGIC.items():
        if start.startswith(magic):
            raise BadData(f"{file} is {told}")


def _lines(file: Path, field: str | None, say: Callable[[str], None]) -> Iterator[tuple[str, Text]]:
    """Yield the text of each line's object."""
    _look(file)
    number = 0
    with file.open("rb") as stream:
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            where = f"line {number} of {file.name}"
            if len(line) > LONGEST_LINE:
                raise BadData(f"{where} is longer than {LONGEST_LINE >> 20} MiB; put one object on each line")
            if b"\0" in line:
                raise BadData(f"{file} is binary: there is a zero byte in line {number}; name a text file")
            words = line.decode("utf-8-sig").strip()
            if words:
                yield where, text_of(_object(words, where, file), field, where)


def _object(words: str, where: str, file: Path) -> dict[str, Any]:
    if words.startswith("["):
        command = f"jq -c '.[]' {file.name} > lines.jsonl"
        raise BadData(f"{where} begins an array; in .jsonl each line holds one object: {command}")
    if words == "{":
        raise BadData(f"{where} is not a whole object; put each on one line: jq -c . {file.name} > lines.jsonl")
    try:
        found = json.loads(words)
    except RecursionError:
        raise BadData(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise BadData(f"{where} is not JSON: {str(error)[:120]}; mend it or take it out") from None
    if not isinstance(found, dict):
        raise BadData(f"{where} holds {kind(found)}; in .jsonl each line holds one object with a text field")
    return found


def _rows(file: Path, field: str | None, say: Callable[[str], None]) -> Iterator[tuple[str, Text]]:
    """Yield the text of each row; of the columns only those that may hold text are read."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadData(
            f"{file} needs pyarrow, which cannot be imported here ({error}): pip install pyarrow, or name a .jsonl file"
        ) from None
    number = 0
    try:
        opened = parquet.ParquetFile(str(file), memory_map=False)
        wanted = KNOWN if field is None else (field,)
        names = [name for name in opened.schema_arrow.names if name in wanted]  # none: all, for the message
        for batch in opened.iter_batches(ROWS, columns=names or None):
            for row in batch.to_pylist():
                number += 1
                where = f"row {number} of {file.name}"
                yield where, text_of(row, field, where)
    except (BadData, GeneratorExit):
        raise
    except Exception as error:  # pyarrow raises what its C++ and thrift readers raise
        after = f" after row {number}" if number else ""
        raise BadData(f"{file} is damaged or not Parquet{after}: {first_line(error)}; make it anew") from None


READERS = {".txt": _paragraphs, ".jsonl": _lines, ".parquet": _rows}


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, cut short, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
