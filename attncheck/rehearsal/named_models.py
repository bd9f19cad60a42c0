"""Finds the models that a launch's own tree names, for a launch that leaves its model to a variable.

A framework's option names its type, README.md runs it with `MODEL_PATH Qwen2.5-3B-Instruct`, or another script exports
the variable. Only the class of the stand-in follows from that.
"""

import contextlib
import os
import re
from pathlib import Path

from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.lint.fields.rehearsing import get_setting
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal.columns import list_folders_above

VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
ARGUMENT = re.compile(r"\$\{?(?:\d|OPTARG)")  # of the script
WORD = r"[\w./-]*\w"
MAX_BYTES = 1 << 18  # of a file
MAX_FILES = 200


def list_named_models(read: ReadLaunch, name: str) -> list[list[tuple[str, str]]]:
    """Return the words that may name the model of a launch whose `name` for it has a variable, each with its file.

    `model_type`, by which frameworks choose their classes, comes first. Then there are the values of this variable in
    the launch's own file, and in those that mention it: README.md and scripts.
    """
    launch, source = read.recognised.launch, read.recognised.launch.source
    kind = get_setting(read.job, "model_type")
    kinds = [[(kind, source.name)]] if kind else []
    own, assigned = os.path.basename(source.name), rf"(\w+)=[\"']?{re.escape(name)}[\"'\s;]"
    variables = {*VARIABLE.findall(name), *re.findall(assigned, source.text)} - {"OPTARG"}
    if "$" not in name or not variables:
        return kinds
    values = re.compile(rf"\b(?:{'|'.join(variables)})=[\"']?\$\{{?([A-Za-z_]\w*)")  # MODEL="${DEFAULT}"
    variables |= {*values.findall(source.text)}
    value = re.compile(rf"(?<![\w$])(?:{'|'.join(sorted(variables))})(?:[ \t]*[=:][ \t]*|[ \t]+)[\"']?({WORD})")
    call = re.compile(rf"{re.escape(own)}\b(.*)")
    nearby: list[tuple[str, str]] = []
    places = ((Path(folder), ending) for folder in list_folders_above(launch) for ending in ("README*.md", "*.sh"))
    for file in sorted({file for folder, ending in places for file in folder.glob(ending)})[:MAX_FILES]:
        with contextlib.suppress(CannotRead):
            text = read_bounded(file, MAX_BYTES).decode(errors="replace").replace("\\\n", " ")
            words = value.findall(text) if own in text and file.name != own else []
            words += re.findall(WORD, " ".join(call.findall(text))) if ARGUMENT.search(name) else []
            nearby += ((word, os.path.relpath(file)) for word in words)
    return [*kinds, [(word, source.name) for word in value.findall(source.text)], nearby]
