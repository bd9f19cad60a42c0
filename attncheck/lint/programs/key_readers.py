"""Finds where a program reads a key of its configuration: `config.data.truncation`, `config.get("truncation")`."""

import re
from collections.abc import Mapping, Sequence

from attncheck.core.job import NO_READER
from attncheck.core.launch import Launch
from attncheck.lint.programs.places import find_main

MAX_MODULES = 150
READS = r"\b{0}\s*(?:\.|\.get\(\s*[\"']|\[\s*[\"']){1}\b"  # actor.lr, actor.get("lr"), actor["lr"]


def find_readers(launch: Launch, keys: Sequence[str]) -> Mapping[str, str]:
    """Return the place that reads each key; `NO_READER` if its name occurs nowhere in what the program imports.

    The keys that are left out are not known to be read or not.
    """
    program = find_main(launch) if keys else None
    modules = [program[0], *program[1].list_imported(program[0], MAX_MODULES)] if program is not None else []
    texts = {module.shown_path: module.text or module.path.read_text("utf-8", "replace") for module in modules}
    is_whole = program is not None and len(modules) <= MAX_MODULES and not program[1].unread
    readers: dict[str, str] = {}
    for key in keys:
        owner, _, name = key.rpartition(".")
        reads = re.compile(READS.format(re.escape(owner.rpartition(".")[2]), re.escape(name)))
        matches = ((path, text, reads.search(text)) for path, text in texts.items())
        places = (f"{path}:{text.count(chr(10), 0, match.start()) + 1}" for path, text, match in matches if match)
        place = next(places, "")
        if place or (is_whole and not any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts.values())):
            readers[key] = place or NO_READER
    return readers
