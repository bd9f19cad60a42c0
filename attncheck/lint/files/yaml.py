"""Parses a YAML file with ruamel.yaml: its keys with their values and spans, from the nodes' marks."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.loader import SafeLoader
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import NOWHERE, Source, Span
from attncheck.lint.files.entry import MAX_DEPTH, MAX_KEYS, Configuration, Entry, make_entry

MAX_CHARACTERS = 1 << 18  # ruamel.yaml reads about 300,000 characters per second
MAX_DOCUMENTS = 100
INTEGER = re.compile(r"[-+]?(?:0|[1-9][\d_]*)")
COMMENTS_BEHIND = re.compile(r"(?:\s*\n[ \t]*(?:#[^\n]*)?)+\Z|\s+\Z")
REAL = re.compile(r"[-+]?(?:\d[\d_]*)?\.?\d+(?:[eE][-+]?\d+)?|[-+]?\d+\.")


class _Loader(SafeLoader):
    """Composes nodes. All its parts are itself, which `YAML` looks up by the name of each reader of a part."""

    max_depth = MAX_DEPTH * 2
    doc_infos = (SimpleNamespace(),)  # receives the version of %YAML
    parser = scanner = reader = resolver = None

    def __init__(self, text: str) -> None:
        self.parser = self.scanner = self.reader = self.resolver = self
        super().__init__(text)
        self.warn_double_anchors = False


def parse(source: Source) -> Configuration:
    """Return the keys of the first document. Raises `BadUsage` with the location of invalid YAML."""
    if len(source.text) > MAX_CHARACTERS:
        raise BadUsage(f"{source.name}: larger than {MAX_CHARACTERS >> 10} KiB, too large for a configuration")
    if _measure_bracket_depth(source.text) > MAX_DEPTH * 8:
        raise BadUsage(f"{source.name}: nested too deeply to be read")
    root, has_more = _compose_document(source)
    if root is None:
        return Configuration()
    if not isinstance(root, MappingNode):
        raise BadUsage(
            f"{_format_location(source, root.start_mark)}: a configuration must be a mapping of keys to values"
        )
    reader = _NodeReader(source)
    try:
        entries = tuple(reader.iter_entries(root, ()))
    except RecursionError:
        raise BadUsage(f"{source.name}: nested too deeply to be read") from None
    return Configuration(entries, ("only the first of several YAML documents is read",) if has_more else ())


def _measure_bracket_depth(text: str) -> int:
    """Return the largest number of brackets open at once, for which ruamel.yaml takes quadratic time."""
    depths = accumulate(1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", text))
    return max(depths, default=0)


def _compose_document(source: Source) -> tuple[Any, bool]:
    """Return the root node of the first document, and whether others follow."""
    try:
        return _compose_first(source.text)
    except MarkedYAMLError as error:
        problem = error.problem or error.context or "not YAML"
        raise BadUsage(
            f"{_format_location(source, error.problem_mark or error.context_mark)}: {_shorten_message(problem)}"
        ) from None
    except RecursionError:
        raise BadUsage(f"{source.name}: nested too deeply to be read") from None
    except Exception as error:  # ruamel.yaml raises ValueError, AssertionError and others for damaged text
        raise BadUsage(f"{source.name}: not YAML: {_shorten_message(str(error)) or type(error).__name__}") from None


@lru_cache(maxsize=64)
def _compose_first(text: str) -> tuple[Any, bool]:
    loader = _Loader(text)
    node = loader.get_node() if loader.check_node() else None
    return node, bool(loader.check_node())


def _format_location(source: Source, mark: Any) -> str:
    return str(source.location(mark.index)) if mark is not None else source.name


def _shorten_message(text: str) -> str:
    return " ".join(text.split())[:200]


class _NodeReader:
    """Walks the nodes of one YAML document, with a limit on their number."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.remaining_nodes = MAX_KEYS
        self.merging: list[MappingNode] = []  # mappings whose keys are being merged into another one

    def iter_entries(self, node: MappingNode, path: Sequence[str], has_spans: bool = True) -> Iterator[Entry]:
        """Yield the entries under a mapping; those from an alias or a merge key have no spans."""
        if len(path) > MAX_DEPTH:
            raise BadUsage(f"{_format_location(self.source, node.start_mark)}: nested too deeply to be read")
        own_keys = {key.value for key, _ in node.value if isinstance(key, ScalarNode)}
        for key, value in node.value:
            self.remaining_nodes -= 1
            if self.remaining_nodes < 0:
                raise BadUsage(f"{self.source.name}: more than {MAX_KEYS} keys")
            if not isinstance(key, ScalarNode):
                continue
            if key.value == "<<" and not key.style:
                yield from self._iter_merged(value, path, own_keys)
                continue
            yield from self._iter_entry(key, value, (*path, key.value), has_spans)

    def _iter_entry(self, key: ScalarNode, value: Any, path: Sequence[str], has_spans: bool) -> Iterator[Entry]:
        start = key.start_mark.index
        is_aliased = value.start_mark.index < key.end_mark.index or self._is_alias(key)
        if isinstance(value, MappingNode) and value.value:
            yield from self.iter_entries(value, path, has_spans and not is_aliased)
            return
        span = value_span = NOWHERE
        if has_spans:
            value_span = NOWHERE if is_aliased else self._find_value_span(value, key)
            span = NOWHERE if is_aliased else (start, value_span[1])
        separator = " " if self.source.text[value_span[0] - 1 : value_span[0]] == ":" else ""
        yield make_entry(self.source, path, self._format_value(value), start, span, value_span, separator)

    def _is_alias(self, key: ScalarNode) -> bool:
        """Return whether the value of the key is written as an alias, regardless of the node that it refers to."""
        after = self.source.text[key.end_mark.index : key.end_mark.index + 200]
        return re.match(r"\s*:[ \t]+\*\S", after) is not None

    def _find_value_span(self, value: Any, key: ScalarNode) -> Span:
        """Return the span of a value; for an empty value or a multi-line list it begins after the colon of its key.

        At the list's own position, another value could be indented too little.
        """
        start, end = value.start_mark.index, value.end_mark.index
        text = self.source.text[start:end]
        colon = self.source.text.find(":", key.end_mark.index) + 1
        if not text.strip():
            return (colon, colon)
        if isinstance(value, SequenceNode) and not value.flow_style:
            return (colon, start + len(COMMENTS_BEHIND.sub("", text)))
        return (start, start + len(text.rstrip()))

    def _iter_merged(self, value: Any, path: Sequence[str], own_keys: set[str]) -> Iterator[Entry]:
        nodes = value.value if isinstance(value, SequenceNode) else [value]
        depth = len(path)
        known_keys = set(own_keys)
        for node in nodes:
            if not isinstance(node, MappingNode):
                continue
            if any(node is other for other in self.merging):
                raise BadUsage(
                    f"{_format_location(self.source, node.start_mark)}: a mapping that is merged into itself"
                )
            self.merging.append(node)
            for entry in self.iter_entries(node, path, has_spans=False):
                if entry.name.split(".")[depth] not in known_keys:
                    yield entry
            self.merging.pop()
            known_keys |= {key.value for key, _ in node.value if isinstance(key, ScalarNode)}

    def _format_value(self, node: Any) -> str:
        """Return a scalar without its quotes, a list or an empty table as JSON."""
        if isinstance(node, ScalarNode):
            return str(node.value)
        converted = self._convert_node(node, 0)
        return json.dumps(converted, ensure_ascii=False, default=str)

    def _convert_node(self, node: Any, depth: int) -> Any:
        self.remaining_nodes -= 1
        if self.remaining_nodes < 0 or depth > MAX_DEPTH:
            raise BadUsage(f"{_format_location(self.source, node.start_mark)}: this setting is too large")
        if isinstance(node, SequenceNode):
            return [self._convert_node(item, depth + 1) for item in node.value]
        if isinstance(node, MappingNode):
            return {str(getattr(key, "value", "")): self._convert_node(item, depth + 1) for key, item in node.value}
        return _convert_scalar(node)


def _convert_scalar(node: Any) -> Any:
    text = str(node.value)
    if node.style:  # quoted, or a block
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


def compose_documents(source: Source) -> list[Any]:
    """Return the root nodes of the documents of a file, up to the first one that does not parse."""
    if len(source.text) > MAX_CHARACTERS or _measure_bracket_depth(source.text) > MAX_DEPTH * 8:
        return []
    roots: list[Any] = []
    try:
        loader = _Loader(source.text)
        while len(roots) < MAX_DOCUMENTS and loader.check_node():
            roots.append(loader.get_node())
    except Exception:  # damage after the first document is ignored, because no configuration is there
        return roots
    return roots
