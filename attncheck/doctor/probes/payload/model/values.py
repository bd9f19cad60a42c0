"""Typed reading of a parsed configuration, in which anything may be of the wrong type.

Each function returns a fact: known, absent (no name is there, or its value is null), or unreadable with the reason.
"""

from __future__ import annotations

from ..facts import absent, known, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGEST = 1 << 40  # no size in a model configuration comes near it


def value(fact: dict[str, Any], default: Any = None) -> Any:
    """Return the value of `fact`, or `default` where it is not known."""
    return fact.get("known", default)


def whole(document: dict[str, Any], *names: str, least: int = 1) -> dict[str, Any]:
    """Return the first of `names` that is there as a whole number of at least `least`."""
    for name in names:
        found = document.get(name)
        if found is None:
            continue
        if type(found) is int and least <= found <= LARGEST:
            return known(found)
        return unreadable("{} is {}, not a whole number of at least {}".format(name, shown(found), least))
    return absent("config.json does not give " + names[0])


def real(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the first of `names` that is there as a finite number that is not negative."""
    for name in names:
        found = document.get(name)
        if found is None:
            continue
        if type(found) in (int, float) and 0 <= found <= LARGEST:  # NaN and infinity fail the comparison
            return known(float(found))
        return unreadable("{} is {}, not a number".format(name, shown(found)))
    return absent("config.json does not give " + names[0])


def flag(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the first of `names` that is there as true or false."""
    for name in names:
        found = document.get(name)
        if found is None:
            continue
        if isinstance(found, bool):
            return known(found)
        return unreadable("{} is {}, not true or false".format(name, shown(found)))
    return absent("config.json does not give " + names[0])


def text(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the first of `names` that is there as a text that is not empty."""
    for name in names:
        found = document.get(name)
        if found is None or found == "":
            continue
        if isinstance(found, str):
            return known(found[:200])
        return unreadable("{} is {}, not a text".format(name, shown(found)))
    return absent("config.json does not give " + names[0])


def words(found: Any, most: int = 4096) -> list[str]:
    """Return `found` where it is a list of texts, else an empty list."""
    if isinstance(found, list) and len(found) <= most and all(isinstance(item, str) for item in found):
        return [item[:100] for item in found]
    return []


def indices(found: Any, most: int = 4096) -> list[int]:
    """Return `found` where it is a list of whole numbers, else an empty list."""
    if isinstance(found, list) and len(found) <= most and all(type(item) is int for item in found):
        return list(found)
    return []


def table(found: Any) -> dict[str, Any]:
    """Return `found` where it is a JSON object, else an empty one."""
    return found if isinstance(found, dict) else {}


def shown(found: Any) -> str:
    """Return a value of the wrong type as a short text."""
    if isinstance(found, (list, dict)):
        return "a list" if isinstance(found, list) else "an object"
    if type(found) is int and abs(found) > LARGEST:  # printing one of thousands of digits raises
        return "a number beyond 2**40"
    return repr(found)[:40]
