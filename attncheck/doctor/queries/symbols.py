"""A short readable form of mangled C++ names for messages: enough to recognise the function, not a full demangler."""

import re

_START = re.compile(r"_Z(T[ISV]|GV)?(N[rVKRO]*)?")
_LENGTH = re.compile(r"\d+")
# Parts of template arguments without nesting: literals, substitutions, template parameters.
_ATOM = re.compile(r"L(?!_Z)[^E]*E|S[0-9A-Z]*_|S[absiodt]|T\d*_|D[pnahisuc]")
_PREFIXES = {"TI": "typeinfo for ", "TS": "typeinfo name for ", "TV": "vtable for ", "GV": "guard variable for "}


def demangle_hint(name: str) -> str:
    """Return a mangled name such as `_ZNK3c106SymInt6sym_neERKS0_` as `c10::SymInt::sym_ne(…)`; others unchanged."""
    start = _START.match(name)
    if start is None:
        return name
    parts: list[str] = []
    position = start.end()
    while position < len(name) and len(parts) < 32:
        if name[position] == "E" or (not start[2] and parts and name[position] != "I"):
            break
        if (position := _read_component(name, position, parts)) < 0:
            return name
    suffix = "" if start[1] or name[position:] in ("", "E") else "(…)"
    return _PREFIXES.get(start[1], "") + "::".join(parts) + suffix if parts else name


def _read_component(name: str, position: int, parts: list[str]) -> int:
    """Append the component at `position` to `parts`; return where the next begins, or -1 if it cannot be parsed."""
    length = _LENGTH.match(name, position)
    if length is not None:
        end = length.end() + int(length[0][:6])
        parts.append(name[length.end() : end])
        return end if end <= len(name) else -1
    if name.startswith("St", position):
        parts.append("std")
    elif parts and re.match(r"C[123]|D[012]", name[position:]):
        parts.append(("~" if name[position] == "D" else "") + parts[-1].split("<")[0])
    elif name[position] == "I" and parts:
        parts[-1] += "<…>"
        return _skip_template_arguments(name, position + 1)
    else:
        return -1
    return position + 2


def _skip_template_arguments(name: str, position: int) -> int:
    """Return where the template arguments that begin at `position` end; -1 if they do not end."""
    depth = 1
    while depth and position < len(name):
        if length := _LENGTH.match(name, position):
            position = length.end() + int(length[0][:6])
        elif atom := _ATOM.match(name, position):
            position = atom.end()
        else:
            depth += 1 if name[position] in "INXJF" else -1 if name[position] == "E" else 0
            position += 1
    return position if not depth else -1
