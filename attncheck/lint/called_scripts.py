"""Finds the script that a command runs or sources: `bash train.sh 8`, `sbatch train.slurm`, `source env.sh`."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from attncheck.core.io.secrets import remember_settings
from attncheck.core.launch import COMMAND, ReadFile, Source, Word
from attncheck.lint.launchers import srun
from attncheck.lint.launchers.options import parse_leading_options, program_name
from attncheck.lint.programs.places import REPOSITORY_MARKS
from attncheck.lint.shell.carriers import SHELLS

SCRIPT_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".job", ".zsh")
FOREIGN_SCRIPTS = {"activate", "conda.sh", "mamba.sh", ".bashrc", ".bash_profile", ".profile", "profile", "setvars.sh"}
SECRET_SCRIPTS = re.compile(r"^\.env|secret|token|credential|password|(?:^|[_.-])keys?(?:[_.-]|$)", re.IGNORECASE)
ASSIGNMENT_LINE = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=([^\s;#]+)", re.MULTILINE)
SCRIPT_PATH = r"\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"
REAL_PATH = rf"\$\((?:realpath|readlink -f) (?:-- )?{SCRIPT_PATH}\)"
SCRIPT_FOLDER = re.compile(
    rf"\$\(dirname (?:-- )?(?:{SCRIPT_PATH}|{REAL_PATH})\)|" + r"\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}"
)
CHANGED_FOLDER = re.compile(
    r"\$\((?:cd (?:-- |-P )?(?P<entered>@[\w./-]*)(?: ?&?>/dev/null(?: 2>&1)?)? ?(?:&&|;) ?pwd(?: -P)?"
    r"|(?:realpath|readlink -f) (?:-- )?(?P<real>@[\w./-]*)|dirname (?:-- )?(?P<below>@[\w./-]*))\)"
)
FOUND_PROGRAM = re.compile(r"\$\((?:which|command -v|type -P) ([\w.+-]+)\)")
TOP_FOLDER = re.compile(r"\$\(git (?:-C @[\w./-]* )?rev-parse --show-toplevel(?: 2>/dev/null)?\)")
WORKING_FOLDER = re.compile(r"(?:\$\(pwd(?: -P)?\)|`pwd`|\$PWD|\$\{PWD\})/+(?=[^/])")
MAX_FOLDERS = 4  # nesting depth: $(dirname "$(cd "$(dirname "$0")" && pwd)")


def resolve_path(text: str, script: Source, folder: str) -> str:
    """Return the path that a script names, relative to the folder in which the script was found; "" if unknown.

    `$(dirname "$0")/x` and `$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/x` are next to the script; `$(pwd)/x` is
    in the working folder.
    """
    plain = SCRIPT_FOLDER.sub("@", " ".join(re.sub(r"[\"']", "", text).split()).replace("( ", "(").replace(" )", ")"))
    here = "" if script.name in (COMMAND, "-") else str(PurePosixPath(script.name).parent)
    for _ in range(MAX_FOLDERS):
        plain = CHANGED_FOLDER.sub(
            lambda folder: f"{folder['below']}/.." if folder["below"] else folder["entered"] or folder["real"],
            TOP_FOLDER.sub(lambda _: _find_top(here), plain),
        )
    if (plain == "@" or plain.startswith("@/")) and not re.search(r"[$`]", plain):
        return posixpath.normpath(posixpath.join(here, plain[2:]))
    text = WORKING_FOLDER.sub("", text, count=1) if WORKING_FOLDER.match(text) else text
    return "" if not text or re.search(r"[$`\0\n]", text) else posixpath.join(folder, text)


def _find_top(here: str) -> str:
    """Return the repository's folder relative to the script's own, such as "@/.."; "." if there is no repository."""
    start = Path(here or ".").absolute()
    for steps, folder in enumerate((start, *start.parents)):
        if any((folder / mark).exists() for mark in REPOSITORY_MARKS):
            return "/".join(("@", *[".."] * steps))
    return "/".join(("@", *[".."] * len(PurePosixPath(here).parts)))


def resolve_word(word: Word, script: Source) -> Word:
    """Return a word with its path in the script's folder, or its program, resolved; its shell text is kept."""
    program = None if word.known else FOUND_PROGRAM.fullmatch(word.text)
    if program:  # "$(which swift)": its location does not matter
        return replace(word, text=program[1], known=True)
    option, equals, text = word.text.partition("=") if word.text.startswith("-") else ("", "", word.text)
    path = resolve_path(text, script, "") if not word.known and text.startswith(("$", "`")) else ""
    return replace(word, text=option + equals + path, known=True) if path else word


def read_script(text: str, script: Source, folder: str, read_file: ReadFile) -> Source | None:
    """Return the shell script that `script` names; None if it is unknown, missing or not one of the user's.

    Files of secrets are not opened, and secrets in other files are recorded so that no output shows them.
    """
    path = resolve_path(text, script, folder)
    name = posixpath.basename(path)
    if not path or name in FOREIGN_SCRIPTS or SECRET_SCRIPTS.search(name):
        return None
    file = read_file(path) or (read_file(text) if folder and path != text else None)
    if file is None or file.kind != "shell":
        return None
    remember_settings({match[1]: match[2].strip("\"'") for match in ASSIGNMENT_LINE.finditer(file.text)})
    return file


def find_called_script(words: Sequence[Word]) -> tuple[Word, tuple[Word, ...]] | None:
    """Return the word that names the script which a command runs, and its arguments; None if it runs none."""
    if not words:
        return None
    name = program_name(words[0])
    if name in SHELLS:
        return _skip_shell_options(words)
    if name == "sbatch":
        rest = parse_leading_options(words[1:], srun.VALUE_OPTIONS | {"-a", "--array"}, srun.SWITCHES).rest
        return (rest[0], rest[1:]) if rest else None
    return (words[0], tuple(words[1:])) if name.endswith(SCRIPT_SUFFIXES) else None


def _skip_shell_options(words: Sequence[Word]) -> tuple[Word, tuple[Word, ...]] | None:
    index = 1
    while index < len(words) and re.fullmatch(r"[-+][A-Za-z]+|--[\w-]*", text := words[index].text):
        if "c" in text and not text.startswith("--"):
            return None
        index += 2 if text[-1] == "o" and not text.startswith("--") else 1
    return (words[index], tuple(words[index + 1 :])) if index < len(words) else None


def mark_uneditable(file: Source) -> Source:
    """Return a script marked as not given to lint, so that nothing is written into it."""
    return replace(file, editable=False)
