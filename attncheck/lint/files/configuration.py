"""Parses configuration files: every key with its value and its span. A training script may be one, too."""

from functools import lru_cache

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import Setting, Source
from attncheck.lint.files import json, python, toml
from attncheck.lint.files.entry import Configuration, Entry

__all__ = ["Configuration", "Entry", "parse_configuration", "parse_entries"]


def parse_entries(source: Source) -> tuple[Setting, ...]:
    """Return every key with its value, nested keys dotted; of a key written twice both, and the last one counts.

    A list is one setting, as JSON. What is set only at run time (`${oc.env:X}`, `???`) is not known.
    Raises `BadUsage`, in one line with its location, for a file that does not parse.
    """
    return parse_configuration(source).entries


@lru_cache(maxsize=16)  # a file is read for its launch, for what it names and for what is corrected
def parse_configuration(source: Source) -> Configuration:
    """Return the keys of a file, and notes on what could not be read. Raises `BadUsage` as `parse_entries` does."""
    if source.kind == "json":
        return json.parse(source)
    if source.kind == "toml":
        return toml.parse(source)
    if source.kind == "python":
        return python.parse(source)
    if source.kind == "yaml":
        from attncheck.lint.files import yaml  # ruamel.yaml is imported only if there is YAML to read

        return yaml.parse(source)
    raise BadUsage(f"{source.name}: not a configuration file: YAML, JSON or TOML")
