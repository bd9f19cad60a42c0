"""Finds the models that a launch's own tree names, for a launch that leaves its model to a variable.

README.md runs it with `MODEL_PATH Qwen2.5-3B-Instruct`, or another script exports the variable. Only the class of the
stand-in follows from that.
"""

import os
import re
from pathlib import Path

from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal.columns import list_folders_above

VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
ARGUMENT = re.compile(r"\$\{?(?:\d|OPTARG)")  # of the script
WORD = r"[\w./-]*\w"
MAX_FILES = 200


def list_named_models(read: ReadLaunch, name: str) -> list[list[tuple[str, str]]]:
    """Return the words that may name the model of a launch whose `name` for it has a variable, each with its file.

    These are values of this variable in the launch's own file, then in those that mention it: README.md and scripts.
    """
    launch = read.recognised.launch
    source, own = launch.source, os.path.basename(launch.source.name)
    assigned = re.findall(rf"(\w+)=[\"']?{re.escape(name)}[\"'\s;]", source.text)
    variables = {*VARIABLE.findall(name), *assigned} - {"OPTARG"}
    if "$" not in name or not variables:
        return []
    value = re.compile(rf"(?<![\w$])(?:{'|'.join(sorted(variables))})(?:[ \t]*[=:][ \t]*|[ \t]+)[\"']?({WORD})")
    nearby: list[tuple[str, str]] = []
    folders = map(Path, list_folders_above(launch))
    files = {file for folder in folders for ending in ("README*.md", "*.sh") for file in folder.glob(ending)}
    for file in sorted(filter(Path.is_file, files))[:MAX_FILES]:
        text = file.read_text(errors="replace").replace("\\\n", " ")
        words = value.findall(text) if own in text and file.name != own else []
        words += (
            re.findall(WORD, " ".join(re.findall(rf"{re.escape(own)}\b(.*)", text))) if ARGUMENT.search(name) else []
        )
        nearby += ((word, os.path.relpath(file)) for word in words)
    return [[(word, source.name) for word in value.findall(source.text)], nearby]
