"""The keys of a YAML file and where they stand, through ruamel.yaml's own nodes."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from attncheck.core.errors import BadUsage
from attncheck.core.launch import NOWHERE, Source, Span
from attncheck.lint.files.entry import DEEPEST, MOST, Entry, Read, entry

LONGEST = 1 << 18  # characters: ruamel.yaml reads some 300 kB a second
LONGEST_LIST = 1 << 16
INTEGER = re.compile(r"[-+]?(?:0|[1-9][\d_]*)")
REAL = re.compile(r"[-+]?(?:\d[\d_]*)?\.?\d+(?:[eE][-+]?\d+)?|[-+]?\d+\.")


def read(source: Source) -> Read:
    """Return the keys of the first document. Raises `BadUsage` with the place of what is no YAML."""
    if len(source.text) > LONGEST:
        raise BadUsage(f"{source.name}: larger than {LONGEST >> 10} KiB; no configuration is")
    if _brackets(source.text) > DEEPEST * 8:
        raise BadUsage(f"{source.name}: nested too deeply to be read")
    root, more = _composed(source)
    if root is None:
        return Read()
    if not isinstance(root, MappingNode):
        raise BadUsage(f"{_at(source, root.start_mark)}: a configuration is a mapping of keys to values")
    reader = _Reader(source)
    found = tuple(reader.mapping(root, ()))
    return Read(found, ("of several YAML documents only the first is read",) if more else ())


def _brackets(text: str) -> int:
    """Return how many brackets are open at once, at most: ruamel.yaml takes them in quadratic time."""
    depths = accumulate(1 if one in "[{" else -1 for one in re.findall(r"[\[\]{}]", text))
    return max(depths, default=0)


def _composed(source: Source) -> tuple[Any, bool]:
    """Return the first document's node, and whether others follow."""
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = DEEPEST * 2
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an anchor that is set twice
            constructor, _ = yaml.get_constructor_parser(source.text)
            composer = constructor.composer
            node = composer.get_node() if composer.check_node() else None
            return node, bool(composer.check_node())
    except MarkedYAMLError as error:
        what = error.problem or error.context or "not YAML"
        raise BadUsage(f"{_at(source, error.problem_mark or error.context_mark)}: {_line(what)}") from None
    except RecursionError:
        raise BadUsage(f"{source.name}: nested too deeply to be read") from None
    except Exception as error:  # ruamel.yaml raises ValueError, AssertionError, … for some damaged text
        raise BadUsage(f"{source.name}: not YAML: {_line(str(error)) or type(error).__name__}") from None


def _at(source: Source, mark: Any) -> str:
    return str(source.location(mark.index)) if mark is not None else source.name


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


class _Reader:
    """Walks the nodes of one document."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.left = MOST

    def mapping(self, node: MappingNode, path: Sequence[str], here: bool = True) -> Iterator[Entry]:
        """Yield the entries under a mapping; what an alias or a merge brings has no place of its own."""
        if len(path) > DEEPEST:
            raise BadUsage(f"{_at(self.source, node.start_mark)}: nested too deeply to be read")
        own = {key.value for key, _ in node.value if isinstance(key, ScalarNode)}
        for key, value in node.value:
            self.left -= 1
            if self.left < 0:
                raise BadUsage(f"{self.source.name}: more than {MOST} keys")
            if not isinstance(key, ScalarNode):
                continue
            if key.value == "<<" and not key.style:
                yield from self._merged(value, path, own)
                continue
            yield from self._entry(key, value, (*path, key.value), here)

    def _entry(self, key: ScalarNode, value: Any, path: Sequence[str], here: bool) -> Iterator[Entry]:
        start = key.start_mark.index
        aliased = value.start_mark.index < key.end_mark.index or self._alias(key)
        if isinstance(value, MappingNode) and value.value:
            yield from self.mapping(value, path, here and not aliased)
            return
        span = value_span = NOWHERE
        if here:
            value_span = NOWHERE if aliased else self._span(value, key)
            span = NOWHERE if aliased else (start, value_span[1])
        yield entry(self.source, path, self._text(value), start, span, value_span)

    def _alias(self, key: ScalarNode) -> bool:
        """Say whether the key's value is written as an alias, whatever the node it stands for."""
        after = self.source.text[key.end_mark.index : key.end_mark.index + 200]
        return re.match(r"\s*:[ \t]+\*\S", after) is not None

    def _span(self, value: Any, key: ScalarNode) -> Span:
        """Return where a value stands; an empty one is behind its key's colon."""
        start, end = value.start_mark.index, value.end_mark.index
        text = self.source.text[start:end]
        if text.strip():
            return (start, start + len(text.rstrip()))
        colon = self.source.text.find(":", key.end_mark.index) + 1
        return (colon, colon)

    def _merged(self, value: Any, path: Sequence[str], own: set[str]) -> Iterator[Entry]:
        nodes = value.value if isinstance(value, SequenceNode) else [value]
        prefix = len(path)
        seen = set(own)
        for node in nodes:
            if not isinstance(node, MappingNode):
                continue
            for one in self.mapping(node, path, here=False):
                if one.name.split(".")[prefix] not in seen:
                    yield one
            seen |= {key.value for key, _ in node.value if isinstance(key, ScalarNode)}

    def _text(self, value: Any) -> str:
        """Return a scalar as it is written without its quotes, a list or an empty table as JSON."""
        if isinstance(value, ScalarNode):
            return str(value.value)
        found = self._plain(value, 0)
        text = json.dumps(found, ensure_ascii=False, default=str)
        if len(text) > LONGEST_LIST:
            raise BadUsage(f"{_at(self.source, value.start_mark)}: a list too long to be a setting")
        return text

    def _plain(self, value: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > DEEPEST:
            raise BadUsage(f"{_at(self.source, value.start_mark)}: too much in one setting")
        if isinstance(value, SequenceNode):
            return [self._plain(one, depth + 1) for one in value.value]
        if isinstance(value, MappingNode):
            return {str(getattr(key, "value", "")): self._plain(one, depth + 1) for key, one in value.value}
        return _scalar(value)


def _scalar(value: Any) -> Any:
    text = str(value.value)
    if value.style:  # quoted, or a block
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if len(text) < 20 and INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if len(text) < 40 and REAL.fullmatch(text):
        return float(text.replace("_", ""))
    return text
