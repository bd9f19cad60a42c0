"""python: `python -m module`, `python script.py`; its own options as in `python --help` of 3.13."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attncheck.core.launch import Word
from attncheck.lint.launchers import Launcher, Taken
from attncheck.lint.launchers.options import base

NAME = re.compile(r"(?:python|pypy)[\d.]*t?|\$\{?PYTHON\w*\}?")
VALUED = "WX"


def take(words: Sequence[Word]) -> Taken | None:
    """Return the module or the script that Python runs; None for code (`-c`) and for no program at all."""
    if not words or not NAME.fullmatch(base(words[0])):
        return None
    at = 1
    while at < len(words) and words[at].text.startswith("-") and len(words[at].text) > 1:
        option = words[at].text
        if option.startswith("--"):
            at += 2 if option == "--check-hash-based-pycs" else 1
            continue
        letter = re.search(r"[mcWX]", option)
        if letter and letter[0] == "c":
            return None
        if letter and letter[0] == "m":
            return _module(words, at, option[letter.end() :])
        at += 2 if letter and letter.end() == len(option) else 1
    return Taken(tuple(words[at:])) if at < len(words) else None


def _module(words: Sequence[Word], at: int, name: str) -> Taken | None:
    """Return what `-m` runs; the name may stand in the same word ("-mverl.trainer.main_ppo")."""
    if name:
        word = words[at]
        span = (word.span[0] + len(word.text) - len(name), word.span[1]) if _plain(word) else (-1, -1)
        return Taken((Word(name, span, word.location, word.known), *words[at + 1 :]), module=True)
    return Taken(tuple(words[at + 1 :]), module=True) if at + 1 < len(words) else None


def _plain(word: Word) -> bool:
    return word.span[1] - word.span[0] == len(word.text)


LAUNCHER = Launcher("python", take)
