"""Cleans everything that leaves the program, before a format escapes or wraps it.

Everything that is printed or written to a file passes through here once: `clean_text` for a line, `clean` for data.
"""

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from attncheck.core.io.visible import show_control_characters
from attncheck.core.records import list_fields

if TYPE_CHECKING:  # every command imports this module, so what it needs for cleaning is imported on first use
    from attncheck.core.launch import Edit

T = TypeVar("T")
PLAIN = (int, float, bool, type(None))  # data without text
MASKED_FIX = "… represents a hidden secret: fill it in"
MASKED_LAUNCH = "secrets are shown as …: fill them in before you paste; `attncheck lint --write` keeps them in the file"


def clean_text(text: str) -> str:
    """Return a text that may be shown: secrets are masked, invisible and control characters are escaped."""
    from attncheck.core.io.secrets import mask_secrets
    from attncheck.core.job import DROP

    _remember_environment()
    # The value that drops a setting is ours; readers depend on it, so it is not escaped.
    return text if text == DROP else show_control_characters(mask_secrets(text))


def clean(value: T) -> T:
    """Return dataclasses, mappings, tuples and lists with every text cleaned; the same object if all were clean."""
    cleaned: T = map_texts(value, cache(clean_text))
    return cleaned


def mask(value: T) -> T:
    """Return data with the secrets in every text masked, and everything else unchanged."""
    from attncheck.core.io.secrets import mask_secrets

    _remember_environment()
    masked: T = map_texts(value, cache(mask_secrets))
    return masked


def map_texts(value: Any, clean_one: Callable[[str], str]) -> Any:
    """Return a tree of data with `clean_one` applied to every text; unchanged parts are not copied.

    For a setting and for an entry of a mapping, the name also decides what the value may show.
    """
    kind: Any = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, str):
        cleaned = clean_one(value)
        return value if cleaned == value else cleaned
    names = _list_fields(kind)
    if names:
        return _map_record(value, names, clean_one)
    if isinstance(value, (tuple, list, frozenset, set)):
        items = [map_texts(item, clean_one) for item in value]
        if _are_same(value, items):
            return value
        return value._make(items) if hasattr(value, "_make") else kind(items)
    if isinstance(value, Mapping):
        entries = {clean_one(str(key)): _map_named(str(key), item, clean_one) for key, item in value.items()}
        is_same = list(entries) == list(value) and _are_same(value.values(), entries.values())
        return value if is_same else entries
    return value


@cache
def _list_fields(kind: Any) -> tuple[str, ...]:
    """Return the fields of a class of records; none of another class."""
    is_record = is_dataclass(kind)
    return list_fields(kind) if is_record else ()


def _map_record(record: Any, names: tuple[str, ...], clean_one: Callable[[str], str]) -> Any:
    name = getattr(record, "name", None)
    changes = {}
    for field_name in names:
        before = getattr(record, field_name)
        if not before or type(before) in PLAIN:  # without text
            continue
        if field_name == "value" and isinstance(name, str):
            after = _map_named(name, before, clean_one)
        else:
            after = map_texts(before, clean_one)
        if after is not before:
            changes[field_name] = after
    if not changes:
        return record
    changed = copy.copy(record)  # not `replace`, whose checks would see a half-changed record
    for derived in vars(changed).keys() - {*names}:  # what was computed from the fields before
        del vars(changed)[derived]
    for field_name, after in changes.items():
        object.__setattr__(changed, field_name, after)
    return _remark_masks(record, changed)


def _map_named(name: str, item: Any, clean_one: Callable[[str], str]) -> Any:
    from attncheck.core.io.secrets import MASK
    from attncheck.core.io.secrets.values import is_secret_value

    return MASK if isinstance(item, str) and is_secret_value(name, item) else map_texts(item, clean_one)


def _remark_masks(before: Any, after: Any) -> Any:
    """Return a record that can be pasted or applied, with a remark on the values that were masked in it."""
    from attncheck.core.findings import Fix
    from attncheck.core.io.secrets import is_masked
    from attncheck.core.job import LintedLaunch

    if isinstance(before, Fix) and is_masked(before.text, after.text):
        return replace(after, title=f"{after.title} ({MASKED_FIX})")
    if isinstance(before, LintedLaunch):
        if is_masked(before.diff + before.command, after.diff + after.command):
            after = replace(after, job=replace(after.job, remarks=(*after.job.remarks, MASKED_LAUNCH)))
        return replace(after, edits=_keep_whole(before.edits, after.edits), safe=_keep_whole(before.safe, after.safe))
    return after


def _keep_whole(before: "tuple[Edit, ...]", after: "tuple[Edit, ...]") -> "tuple[Edit, ...]":
    """Return the edits that contain no secret: applying an edit with a mask in it would destroy the user's value."""
    return tuple(new for old, new in zip(before, after) if new.text == old.text)


def _are_same(before: Any, after: Any) -> bool:
    return all(first is second for first, second in zip(before, after))


@cache
def _remember_environment() -> None:
    from attncheck.core.io.secrets import remember_settings

    remember_settings(os.environ)
