"""What a configuration file sets, and where each of its keys stands: YAML, JSON and TOML."""

from __future__ import annotations

from attncheck.core.errors import BadUsage
from attncheck.core.launch import Setting, Source
from attncheck.lint.files import json, toml
from attncheck.lint.files.entry import Entry, Read

__all__ = ["Entry", "Read", "entries", "read"]


def entries(source: Source) -> tuple[Setting, ...]:
    """Return every key with its value, nested keys dotted; of keys written twice both, and the last one counts.

    A list is one setting, as JSON. What only running can tell (`${oc.env:X}`, `???`) is not known.
    Raises `BadUsage`, in one line with its place, for a file that does not parse.
    """
    return read(source).entries


def read(source: Source) -> Read:
    """Return the keys of a file, and what of it could not be read. Raises `BadUsage` as `entries` does."""
    if source.kind == "json":
        return json.read(source)
    if source.kind == "toml":
        return toml.read(source)
    if source.kind == "yaml":
        from attncheck.lint.files import yaml  # ruamel.yaml is imported only where there is YAML to read

        return yaml.read(source)
    raise BadUsage(f"{source.name}: not a configuration file: YAML, JSON or TOML")
