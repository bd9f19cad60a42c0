"""Names of settings by framework version: one JSON file per framework, extracted from its released wheels."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def load_table(framework: str) -> dict[str, Any]:
    """Return the table of one framework ("openrlhf") from its JSON file; {} if there is none."""
    file = resources.files(__package__) / f"{framework}.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return content
