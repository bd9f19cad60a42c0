"""Line bounds and quoting for edits."""

import json
import re
import shlex

from attncheck.core.launch import Kind, Span

PLAIN_YAML = re.compile(r"[A-Za-z_./][\w./@+-]*(?: [\w./@+-]+)*|-?\d[\w.+-]*")
YAML_SWITCHES = ("y", "n", "yes", "no", "on", "off")  # in YAML 1.1, which PyYAML reads: true and false
PYTHON_WORDS = {"true": "True", "false": "False", "null": "None"}
JSON_VALUE = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|\[.*\]|\{.*\}", re.DOTALL)


def quote_value(value: str, kind: Kind) -> str:
    """Return a value in the syntax of `kind`: numbers, true and false unchanged, other text quoted if needed."""
    if kind in ("command", "shell"):
        return shlex.quote(value)
    if kind == "python" and value in PYTHON_WORDS:
        return PYTHON_WORDS[value]
    if JSON_VALUE.fullmatch(value) and (kind != "toml" or value != "null"):
        return value
    if kind == "yaml" and PLAIN_YAML.fullmatch(value) and ": " not in value and value.lower() not in YAML_SWITCHES:
        return value
    return json.dumps(value, ensure_ascii=False)


def find_line_bounds(text: str, span: Span) -> tuple[int, int]:
    """Return the offsets at which the lines of a span begin and end, without the last newline."""
    start = text.rfind("\n", 0, span[0]) + 1
    end = text.find("\n", span[1])
    return start, end if end >= 0 else len(text)
