"""Finds the shell scripts in job files: YAML for a scheduler, a container runner or a pipeline, not for the trainer.

Keys that hold them: `command`, `args` and `env` of a Kubernetes container (kubernetes.io/docs/reference/kubernetes-api/
workload-resources/pod-v1: lists of arguments, no shell), the `entrypoint` of a RayJob, `run`, `setup` and `envs` of
SkyPilot, `commands` and `env` of dstack, `command` of amlt and of docker compose, `script` of GitLab and Argo, `run` of
GitHub's steps.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from attncheck.core.launch import Source
from attncheck.lint.embedded import EmbeddedScript, align_text, join_lines, quote_arguments
from attncheck.lint.files import yaml
from attncheck.lint.files.entry import MAX_DEPTH, MAX_KEYS
from attncheck.lint.shell.text import Segment, Segments

SCRIPT_KEYS = {"run", "setup", "script", "commands", "command", "cmd", "entrypoint", "bash", "source"}
ENVIRON_KEYS = {"env", "envs", "environment", "env_vars", "environment_variables", "variables"}
NAME = re.compile(r"[A-Za-z_]\w*")


def find_scripts(source: Source) -> Iterator[EmbeddedScript]:
    """Yield the shell scripts in a YAML file, in order; none if it does not parse."""
    walker = _Walker(source)
    for root in yaml.compose_documents(source):
        yield from walker.walk(root, {}, 0)


class _Walker:
    """Walks the nodes of one file, with a limit on their number."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.remaining_nodes = MAX_KEYS

    def walk(self, node: Any, environ: Mapping[str, str], depth: int) -> Iterator[EmbeddedScript]:
        """Yield the scripts below a node; `environ` holds the variables set by enclosing tables."""
        self.remaining_nodes -= 1
        if self.remaining_nodes < 0 or depth > MAX_DEPTH:
            return
        if isinstance(node, SequenceNode):
            for item in node.value:
                yield from self.walk(item, environ, depth + 1)
        if not isinstance(node, MappingNode):
            return
        values = {key.value: value for key, value in node.value if isinstance(key, ScalarNode)}
        environ = {**environ, **_read_environ(values)}
        is_container = "image" in values or "args" in values
        arguments = _join_arguments(values) if is_container else []
        for key, value in values.items():
            if key in ENVIRON_KEYS:
                continue
            if arguments and value is arguments[0]:
                yield from self._read_arguments(arguments, environ)
            elif any(value is argument for argument in arguments):
                continue
            elif key in SCRIPT_KEYS and isinstance(value, ScalarNode):
                yield self._make_script(value, environ)
            elif key in SCRIPT_KEYS and _holds_only_text(value):
                yield from self._read_list(value, environ)
            else:
                yield from self.walk(value, environ, depth + 1)

    def _read_arguments(self, nodes: Sequence[Any], environ: Mapping[str, str]) -> Iterator[EmbeddedScript]:
        """Yield the command of a container, with program and arguments in one list or in two."""
        items = [item for node in nodes for item in (node.value if isinstance(node, SequenceNode) else [node])]
        if items:
            text = quote_arguments(_read_text(self.source, item)[0] for item in items)
            yield EmbeddedScript(text, items[0].start_mark.index, environ)

    def _read_list(self, node: SequenceNode, environ: Mapping[str, str]) -> Iterator[EmbeddedScript]:
        """Yield a list as the lines of a script, or as one command if its first word contains no space."""
        texts = [_read_text(self.source, item)[0] for item in node.value]
        if not texts:
            return
        is_script = any(re.search(r"\s", item.value.strip()) for item in node.value[:1]) or len(texts) == 1
        origin = node.value[0].start_mark.index
        yield EmbeddedScript(join_lines(texts) if is_script else quote_arguments(texts), origin, environ)

    def _make_script(self, node: ScalarNode, environ: Mapping[str, str]) -> EmbeddedScript:
        text, is_literal = _read_text(self.source, node)
        return EmbeddedScript(text, node.start_mark.index, environ, is_literal)


def _join_arguments(values: Mapping[str, Any]) -> list[Any]:
    """Return the nodes of a container's command: the program and its arguments."""
    command = values.get("entrypoint") if "entrypoint" in values else values.get("command")
    rest = values.get("args") if "args" in values else values.get("command") if "entrypoint" in values else None
    nodes = [node for node in (command, rest) if node is not None]
    return nodes if nodes and all(_holds_only_text(node) for node in nodes) else []


def _holds_only_text(node: Any) -> bool:
    return isinstance(node, SequenceNode) and all(isinstance(item, ScalarNode) for item in node.value)


def _read_text(source: Source, node: ScalarNode) -> tuple[Segments, bool]:
    """Return a scalar with its positions in the file, and whether the file contains it verbatim, as a literal block."""
    start, end = node.start_mark.index, node.end_mark.index
    raw = source.text[start:end]
    if node.style in ("|", ">"):
        newline = raw.find("\n") + 1
        segments = align_text(node.value, raw[newline:], start + newline) if newline else None
        return segments or (Segment(node.value, -1),), segments is not None and node.style == "|"
    quote = len(node.style or "")
    segments = align_text(node.value, raw[quote : len(raw) - quote], start + quote)
    return segments or (Segment(node.value, -1),), False


def _read_environ(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a table sets, as a mapping, a list of names and values, or a list of assignments."""
    environ: dict[str, str] = {}
    for key in ENVIRON_KEYS & values.keys():
        node = values[key]
        if isinstance(node, MappingNode):
            environ |= {
                name.value: value.value
                for name, value in node.value
                if isinstance(name, ScalarNode) and isinstance(value, ScalarNode)
            }
        for item in node.value if isinstance(node, SequenceNode) else ():
            if isinstance(item, ScalarNode):
                name, equals, text = item.value.partition("=")
                environ |= {name: text} if equals else {}
            elif isinstance(item, MappingNode):
                pair = {key.value: value.value for key, value in item.value if isinstance(key, ScalarNode)}
                if isinstance(pair.get("name"), str) and isinstance(pair.get("value"), str):
                    environ[pair["name"]] = pair["value"]
    return {name: value for name, value in environ.items() if NAME.fullmatch(name)}
