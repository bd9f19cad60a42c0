"""Checks a script's syntax with `bash -n`, which reads a script and runs nothing in it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from typing import IO

SECONDS = 2.0
ERROR = re.compile(r"line (\d+): ((?:syntax error|unexpected EOF).*)")

# Words, quotes, variables and comments alone: bash finds no error in them, and starting it takes as long as all rules.
# Whatever may be more than that does not match: a keyword, an operator, a bracket after a name, a joined line. It has
# no anchor at its end, or else a comment could end early for what follows to be a string.
PLAIN = re.compile(
    r"""(?:
    [ \t\n]+ | (?<!\S)(?<!\\\n)\#[^\n]*
    | (?!(?:if|then|else|elif|fi|for|while|until|do|done|case|esac|in|select|function|coproc|time)\b|\]\])
      [\w./:,=+@%^~*?\]-]+
    | (?<=[=,'"])\[ | \\[^\n] | (?<=[ \t])\\\n | '[^']*' | PARAMETER
    | "(?: [^"\\`$] | \\. | PARAMETER )*"
    )*""".replace("PARAMETER", r"\$(?: \w+ | [@*\#?] | \{ \w+ (?: :?[-=+?][\w./:@-]* )? \} )"),
    re.VERBOSE | re.DOTALL | re.ASCII,
)


@lru_cache(maxsize=1024)
def find_syntax_error(script: str) -> tuple[int, str] | None:
    """Return the line and text of the first error that bash finds; None without an error, or without bash.

    bash gets no variable of ours: BASH_ENV names a file that it would run, and exported functions are code.
    """
    bash = shutil.which("bash") if os.name == "posix" else None
    if bash is None or len(PLAIN.match(script)[0]) == len(script):  # type: ignore[index]
        return None
    try:
        with _open_memory() as file:  # of a pipe, bash reads one character at a time
            file.write(script.encode("utf-8", "surrogateescape"))
            file.seek(0)
            ended = subprocess.run(
                [bash, "--norc", "--noprofile", "-n"],
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={"LC_ALL": "C", "PATH": os.defpath},
                timeout=SECONDS,
                check=False,
            )
    except (OSError, subprocess.SubprocessError):
        return None
    error = ERROR.search(ended.stderr.decode("utf-8", "replace")) if ended.returncode else None
    return (int(error[1]), error[2].strip()) if error else None


def _open_memory() -> IO[bytes]:
    """Return a file that is in no folder, if the system has such files."""
    return os.fdopen(os.memfd_create("script"), "w+b") if sys.platform == "linux" else tempfile.TemporaryFile()
