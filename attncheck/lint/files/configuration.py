"""Parses configuration files, including training scripts: every key with its value and span."""

from functools import lru_cache

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import Setting, Source
from attncheck.lint.files import json, python, toml
from attncheck.lint.files.entry import Configuration, Entry

__all__ = ["Configuration", "Entry", "parse_configuration", "parse_entries"]


def parse_entries(source: Source) -> tuple[Setting, ...]:
    """Return every key with its value, nested keys dotted; a key written twice appears twice, and the last one counts.

    A list is one setting, as JSON. Values set only at run time (`${oc.env:X}`, `???`) are unknown. Raises `BadUsage`,
    in one line with its location, for a file that does not parse.
    """
    return parse_configuration(source).entries


@lru_cache(maxsize=512)  # a file is read for its launch, for the names in it and for corrections; Hydra composes dozens
def parse_configuration(source: Source) -> Configuration:
    """Return the keys of a file, and notes on unreadable parts. Raises `BadUsage` as `parse_entries` does."""
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
