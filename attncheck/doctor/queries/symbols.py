"""A short readable form of mangled C++ names, for messages: enough to recognise the function, not a demangler."""

from __future__ import annotations

import re

_START = re.compile(r"_Z(T[ISV]|GV)?(N[rVKRO]*)?")
_LENGTH = re.compile(r"\d+")
# Pieces inside template arguments that carry no nesting: literals, substitutions, template parameters.
_ATOM = re.compile(r"L(?!_Z)[^E]*E|S[0-9A-Z]*_|S[absiodt]|T\d*_|D[pnahisuc]")
_KINDS = {"TI": "typeinfo for ", "TS": "typeinfo name for ", "TV": "vtable for ", "GV": "guard variable for "}


def demangle_hint(name: str) -> str:
    """Return a name such as `_ZNK3c106SymInt6sym_neERKS0_` as `c10::SymInt::sym_ne(…)`; another as it is."""
    start = _START.match(name)
    if start is None:
        return name
    parts: list[str] = []
    at = start.end()
    while at < len(name) and len(parts) < 32:
        if name[at] == "E" or (not start[2] and parts and name[at] != "I"):
            break
        if (at := _piece(name, at, parts)) < 0:
            return name
    called = "" if start[1] or name[at:] in ("", "E") else "(…)"
    return _KINDS.get(start[1], "") + "::".join(parts) + called if parts else name


def _piece(name: str, at: int, parts: list[str]) -> int:
    """Read one component at `at` into `parts`; return where the next begins, -1 for what is not understood."""
    length = _LENGTH.match(name, at)
    if length is not None:
        end = length.end() + int(length[0][:6])
        parts.append(name[length.end() : end])
        return end if end <= len(name) else -1
    if name.startswith("St", at):
        parts.append("std")
    elif parts and re.match(r"C[123]|D[012]", name[at:]):
        parts.append(("~" if name[at] == "D" else "") + parts[-1].split("<")[0])
    elif name[at] == "I" and parts:
        parts[-1] += "<…>"
        return _after_arguments(name, at + 1)
    else:
        return -1
    return at + 2


def _after_arguments(name: str, at: int) -> int:
    """Return where the template arguments that begin at `at` end, -1 where they do not."""
    depth = 1
    while depth and at < len(name):
        if length := _LENGTH.match(name, at):
            at = length.end() + int(length[0][:6])
        elif atom := _ATOM.match(name, at):
            at = atom.end()
        else:
            depth += 1 if name[at] in "INXJF" else -1 if name[at] == "E" else 0
            at += 1
    return at if not depth else -1
