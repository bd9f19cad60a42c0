"""What triton compiles its launchers with, on the first kernel of every job: a C compiler and Python's headers.

triton 3.2.0 and 3.6.0, `triton/runtime/build.py` (`_build`): CC, else gcc or clang on PATH; headers from sysconfig's
"include".
"""

from __future__ import annotations

import os
import sysconfig

from .. import files
from ..facts import absent, known


def find_c_compiler() -> dict[str, object]:
    """Return the program that triton would call as a fact."""
    named = os.environ.get("CC", "")
    if named:
        program = named.split()[0] if named.split() else ""
        return known(named) if files.find_program(program) else absent("CC names %s, which is not there" % named)
    program = files.find_program("gcc") or files.find_program("clang")
    return known(program) if program else absent("CC is not set, and neither gcc nor clang is on PATH")


def find_python_headers() -> dict[str, object]:
    """Return the folder that holds Python.h as a fact."""
    scheme = sysconfig.get_default_scheme() if hasattr(sysconfig, "get_default_scheme") else ""
    scheme = "posix_prefix" if scheme in ("", "posix_local") else scheme  # Debian's own scheme, which triton avoids too
    folder = sysconfig.get_paths(scheme=scheme).get("include", "")
    if os.path.isfile(os.path.join(folder, "Python.h")):
        return known(folder)
    return absent("%s has no Python.h" % folder)
