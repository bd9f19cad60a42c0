"""The texts of a user's .txt, .jsonl or .parquet, one after the other, reading no further than the caller takes."""

from __future__ import annotations

import importlib
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attncheck.smoke.worker.data.fields import FIELD_FLAG, KNOWN_FIELDS, BadData, Text, describe_json_type, extract_text
from attncheck.workers.inside.paths import user_path

PIECE_CHARS = 1 << 16  # given to a tokenizer at once; a longer line of a .txt is cut there
MAX_LINE_BYTES = 32 << 20  # of a .jsonl's line: it cannot be cut, only refused
PARQUET_BATCH_ROWS = 32  # read at once
MAGIC_NUMBERS = {
    b"PAR1": "a Parquet file: give it the ending .parquet",
    b"\x1f\x8b": "gzip-compressed: unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "zstd-compressed: unpack it with unzstd",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\xff\xfe": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
}


def read_texts(path: str, field: str | None, report_progress: Callable[[str], None]) -> Iterator[tuple[str, Text]]:
    """Yield each text's location ("line 3 of chat.jsonl") and the text: a string or the messages of a conversation.

    `field` names the field to take; else the usual ones are tried. Raises `BadData`.
    """
    file = Path(user_path(path))
    reader = _select_reader(file)
    try:
        mode, size = _stat_file(file)
        if not stat.S_ISREG(mode):
            raise BadData(f"{path} is not a file{_describe_folder(file)}; name a .jsonl, .parquet or .txt file")
        if not size:
            raise BadData(f"{path} is empty; name a file with text in it")
        yield from reader(file, field, report_progress)
    except UnicodeDecodeError:
        raise BadData(f"{path} is not UTF-8 text; convert it with iconv -t UTF-8") from None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}") from None


def _stat_file(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except FileNotFoundError:
        raise BadData(f"there is no file {file}") from None
    except ValueError:  # a NUL in the name
        raise BadData(f"{str(file)!r} cannot be the name of a file") from None
    return status.st_mode, status.st_size


def _describe_folder(file: Path) -> str:
    if not file.is_dir():
        return ""
    names = sorted(child.name for child in file.iterdir() if child.suffix.lower() in READERS)
    return " but a folder" + (f" with {names[0]} in it" if names else "")


def _select_reader(file: Path) -> Callable[[Path, str | None, Callable[[str], None]], Iterator[tuple[str, Text]]]:
    suffix = file.suffix.lower()
    if suffix == ".json":
        raise BadData(
            f"{file} ends in .json; make one object a line of it: jq -c '.[]' {file.name} > {file.stem}.jsonl"
        )
    if suffix not in READERS:
        ending = f"ends in {suffix}" if suffix else "has no ending that tells what it holds"
        raise BadData(f"{file} {ending}; smoke reads .jsonl, .parquet and .txt")
    return READERS[suffix]


def _read_paragraphs(
    file: Path, field: str | None, report_progress: Callable[[str], None]
) -> Iterator[tuple[str, Text]]:
    """Yield the paragraphs of a text file: what lies between blank lines."""
    _refuse_known_formats(file)
    if field:
        raise BadData(f"{file} has no fields; leave {FIELD_FLAG} out")
    lines: list[str] = []
    line_number = size = 0
    line_complete = True  # whether the last line was read to its end
    with file.open(encoding="utf-8-sig") as stream:
        while line := stream.readline(PIECE_CHARS):
            line_number += line_complete
            if "\0" in line:
                raise BadData(f"{file} is binary: there is a zero byte in line {line_number}; name a text file")
            if line_complete and len(line) == PIECE_CHARS and not line.endswith("\n"):
                report_progress(
                    f"line {line_number} of {file.name} has more than {PIECE_CHARS} characters: it was cut there"
                )
            line_complete = line.endswith("\n")
            size += len(line)
            if line.strip():
                lines.append(line)
            if lines and (not line.strip() or size >= PIECE_CHARS):
                yield f"line {line_number} of {file.name}", "".join(lines).strip("\n")
            if not line.strip() or size >= PIECE_CHARS:
                lines, size = [], 0
    if lines:
        yield f"line {line_number} of {file.name}", "".join(lines).strip("\n")


def _refuse_known_formats(file: Path) -> None:
    """Raise `BadData` where the first bytes are those of a format that is not plain text."""
    with file.open("rb") as stream:
        first_bytes = stream.read(4)
    for magic, advice in MAGIC_NUMBERS.items():
        if first_bytes.startswith(magic):
            raise BadData(f"{file} is {advice}")


def _read_json_lines(
    file: Path, field: str | None, report_progress: Callable[[str], None]
) -> Iterator[tuple[str, Text]]:
    """Yield the text of the JSON object in each line."""
    _refuse_known_formats(file)
    line_number = 0
    with file.open("rb") as stream:
        while line := stream.readline(MAX_LINE_BYTES + 1):
            line_number += 1
            location = f"line {line_number} of {file.name}"
            if len(line) > MAX_LINE_BYTES:
                raise BadData(f"{location} is longer than {MAX_LINE_BYTES >> 20} MiB; put one object on each line")
            if b"\0" in line:
                raise BadData(f"{file} is binary: there is a zero byte in line {line_number}; name a text file")
            text = line.decode("utf-8-sig").strip()
            if text:
                yield location, extract_text(_parse_json_object(text, location, file), field, location)


def _parse_json_object(text: str, location: str, file: Path) -> dict[str, Any]:
    if text.startswith("["):
        command = f"jq -c '.[]' {file.name} > lines.jsonl"
        raise BadData(f"{location} begins an array; in .jsonl each line holds one object: {command}")
    if text == "{":
        raise BadData(f"{location} is not a whole object; put each on one line: jq -c . {file.name} > lines.jsonl")
    try:
        value = json.loads(text)
    except RecursionError:
        raise BadData(f"{location} is nested too deeply") from None
    except ValueError as error:
        raise BadData(f"{location} is not JSON: {str(error)[:120]}; mend it or take it out") from None
    if not isinstance(value, dict):
        raise BadData(
            f"{location} holds {describe_json_type(value)}; in .jsonl each line holds one object with a text field"
        )
    return value


def _read_parquet_rows(
    file: Path, field: str | None, report_progress: Callable[[str], None]
) -> Iterator[tuple[str, Text]]:
    """Yield the text of each row; only the columns that may hold text are read."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadData(
            f"{file} needs pyarrow, which cannot be imported here ({error}): pip install pyarrow, or name a .jsonl file"
        ) from None
    row_number = 0
    try:
        parquet_file = parquet.ParquetFile(str(file), memory_map=False)
        candidates = KNOWN_FIELDS if field is None else (field,)
        names = [name for name in parquet_file.schema_arrow.names if name in candidates]  # none: all, for the message
        for batch in parquet_file.iter_batches(PARQUET_BATCH_ROWS, columns=names or None):
            for row in batch.to_pylist():
                row_number += 1
                location = f"row {row_number} of {file.name}"
                yield location, extract_text(row, field, location)
    except (BadData, GeneratorExit):
        raise
    except Exception as error:  # pyarrow raises what its C++ and thrift readers raise
        after = f" after row {row_number}" if row_number else ""
        raise BadData(f"{file} is damaged or not Parquet{after}: {summarize_error(error)}; make it anew") from None


READERS = {".txt": _read_paragraphs, ".jsonl": _read_json_lines, ".parquet": _read_parquet_rows}


def summarize_error(error: BaseException) -> str:
    """Return the first line of an error's message, at most 160 characters, or the error's type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
