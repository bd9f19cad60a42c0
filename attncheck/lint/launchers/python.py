"""python: `python -m module`, `python script.py`; its own options as in `python --help` of 3.13.

Isaac Sim starts its interpreter by a script, `_isaac_sim/python.sh`, with the same options.
"""

import re
from collections.abc import Sequence

from attncheck.lint.launchers import Launcher, ParsedLauncher, Word
from attncheck.lint.launchers.options import program_name

PROGRAM = re.compile(r"(?:python|pypy)[\d.]*t?(?:\.sh)?|\$\{?PYTHON\w*\}?")


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the module or script that Python runs; None for code (`-c`) and if there is no program."""
    if not words or not PROGRAM.fullmatch(program_name(words[0])):
        return None
    index = 1
    while index < len(words) and words[index].text.startswith("-") and len(words[index].text) > 1:
        option = words[index].text
        if option.startswith("--"):
            index += 2 if option == "--check-hash-based-pycs" else 1
            continue
        letter = re.search(r"[mcWX]", option)
        if letter and letter[0] == "c":
            return None
        if letter and letter[0] == "m":
            return _parse_module(words, index, option[letter.end() :])
        index += 2 if letter and letter.end() == len(option) else 1
    return ParsedLauncher(tuple(words[index:])) if index < len(words) else None


def _parse_module(words: Sequence[Word], index: int, name: str) -> ParsedLauncher | None:
    """Return the module that `-m` runs; its name may be in the same word ("-mverl.trainer.main_ppo")."""
    if name:
        word = words[index]
        is_verbatim = word.span[1] - word.span[0] == len(word.text)
        span = (word.span[1] - len(name), word.span[1]) if is_verbatim else (-1, -1)
        return ParsedLauncher((Word(name, span, word.location, word.known), *words[index + 1 :]))
    return ParsedLauncher(tuple(words[index + 1 :])) if index + 1 < len(words) else None


LAUNCHER = Launcher("python", parse)
