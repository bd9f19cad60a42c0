"""Data sets and templates that a launch of LLaMA-Factory names and that its tree registers under no such name."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache

from attncheck.core.io.files import read_text
from attncheck.lint.fields import SettingProblem
from attncheck.lint.fields.releases import find_closest_name
from attncheck.lint.frameworks.llamafactory.behaviour import LaunchReading
from attncheck.lint.programs.places import list_start_folders, read_own_source

TABLE = "dataset_info.json"
REGISTERED = re.compile(r"^_?register_template\(\s*(?:name=)?[\"']([^\"']+)[\"']", re.MULTILINE)
CALLS = re.compile(r"\b_?register_template\(|\bTEMPLATES\.(?:update|setdefault)\b")
OPEN = re.compile(r"\$|^your", re.IGNORECASE)  # a variable, or a placeholder
TEMPLATES, LOADER = "data/template.py", "data/parser.py"
UNDEFINED = "llamafactory 0.9.5 data/parser.py:125, get_dataset_list: Undefined dataset"
MISSING = "llamafactory 0.9.5 data/template.py:639: Template … does not exist."


def undefined_dataset(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for data sets that no dataset_info.json of the folders in which the launch may start has: a warning.

    Such a file is often extended on the machine that trains, or by the launch's own script; another loader may read it.
    """
    settings = reading.settings
    folder, launch = settings.get_known_text("dataset_dir"), reading.launch
    paths = [base / folder / TABLE for base in list_start_folders(launch)] if folder else []
    tables = [names for path in paths if (names := _list_datasets(read_text(path)))]
    loader = read_own_source(launch, "llamafactory", LOADER)
    is_read = loader is None or UNDEFINED.rpartition(": ")[2] in loader
    for field in ("dataset", "eval_dataset") if is_read and tables and TABLE not in launch.source.text else ():
        listed = filter(None, map(str.strip, settings.get_known_text(field).split(",")))
        missing = [name for name in listed if not (OPEN.search(name) or any(name in table for table in tables))]
        if missing:
            near, text = find_closest_name(missing[0], tables[0]), ", ".join(missing)
            yield _refuse(reading, field, f"{text}: {folder}/{TABLE} does not have it", UNDEFINED, near, mild=True)


def unregistered_template(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for a template that the source of LLaMA-Factory next to the launch does not register."""
    name = reading.settings.get_known_text("template")
    templates = list_templates(reading) if name and "$" not in name else frozenset()
    if templates and name not in templates:
        near = find_closest_name(name, templates)
        yield _refuse(reading, "template", f"{name}: {TEMPLATES} of the tree does not register it", MISSING, near)


def list_templates(reading: LaunchReading) -> frozenset[str]:
    """Return the templates that the source next to the launch registers, which a release's do not replace."""
    return _list_templates(read_own_source(reading.launch, "llamafactory", TEMPLATES) or "")


def _refuse(
    reading: LaunchReading, field: str, text: str, evidence: str, near: str, mild: bool = False
) -> SettingProblem:
    advice = f"the nearest name is {near}" if near else f"name a {field} that is registered"
    text, location = f"{field} {text}: ValueError", reading.find_location(field)
    return SettingProblem("refuses", text, (evidence,), location, advice=advice, mild=mild, universal=True)


@lru_cache(maxsize=64)
def _list_datasets(text: str) -> frozenset[str]:
    try:
        table = json.loads(text or "{}")
    except ValueError:
        return frozenset()
    return frozenset(table) if isinstance(table, dict) else frozenset()


@lru_cache(maxsize=8)
def _list_templates(text: str) -> frozenset[str]:
    """Return the names that a source registers; none if it registers some that it does not write."""
    names = REGISTERED.findall(text)
    return frozenset(names) if len(CALLS.findall(text)) <= len(names) + 2 else frozenset()
