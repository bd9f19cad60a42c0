"""Reads a Dockerfile: what its base image states, the installs of its RUN lines in their order, its ENV lines.

The last stage is read, with the stages that it is built from. A base counts where its tag states a version:
pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel, vllm/vllm-openai:v0.8.5. A later install may move what an earlier one
pinned; where it names a package that pins others, their versions are not known any more.

Source: https://docs.docker.com/reference/dockerfile/ (BuildKit 0.20); the tags of the images on Docker Hub.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from attncheck.core.errors import BadUsage
from attncheck.doctor.knowledge.frameworks import FRAMEWORK_NAMES, RELEVANT_DISTRIBUTIONS
from attncheck.doctor.probes.payload.environ import ALLOWED_VARIABLES
from attncheck.doctor.target_files import conda, requirements
from attncheck.doctor.target_files.collector import Collector, find_pin

BASE_IMAGES = (
    (
        r"(?:docker\.io/)?pytorch/pytorch:(\d+\.\d+\.\d+)-cuda(\d+)\.(\d+)-cudnn\d+-(?:devel|runtime)",
        "torch=={}+cu{}{}",
    ),
    (r"(?:docker\.io/)?vllm/vllm-openai:v(\d+\.\d+\.\d+(?:\.post\d+)?)", "vllm=={}"),
)
PLAIN_IMAGES = re.compile(
    r"(?:docker\.io/)?(?:library/)?(ubuntu|debian|almalinux|rockylinux|nvidia/cuda|scratch)(:.*)?"
)
PYTHON_IMAGE = re.compile(r"(?:docker\.io/)?(?:library/)?python:(3\.\d+)(\.\d+)?(-.*)?")
MAX_TEXT = 1 << 20  # of one instruction
# Packages that pin others exactly or closely: an install of one may move what was there before.
MOVERS = frozenset((*FRAMEWORK_NAMES, "xformers", "torchvision", "torchaudio"))
CONDITIONS = frozenset(("if", "for", "while", "until", "case", "function", "||", "(", "{"))
SEPARATORS = frozenset(("&&", ";", "||", "|", "&", "(", ")", ";;"))
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
_INSTALLER = re.compile(r"(?:.*/)?(pip[\d.]*|conda|mamba|micromamba|uv|poetry|pipenv|python[\d.]*)")


@dataclass
class Stage:
    """One stage of a Dockerfile: its base, and its instructions with their lines."""

    base: str
    line: int
    steps: list[tuple[int, str, str]] = field(default_factory=list)


@dataclass
class Image:
    """What is known while the instructions are followed: where the Dockerfile is, variables, files that are copied."""

    path: str
    collector: Collector
    defaults: dict[str, str] = field(default_factory=dict)  # of ARG, which a build may set
    variables: dict[str, str] = field(default_factory=dict)

    def expand(self, text: str, line: int) -> str:
        """Return a text with the variables that are known; the others stay as they are written."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[3]
            if name in self.variables:
                return self.variables[name]
            if name in self.defaults:
                self.collector.remark(self.path, line, f"{name} is taken as its default, {self.defaults[name]}")
                return self.defaults[name]
            return match[2] if match[2] is not None else match[0]

        expanded = _VARIABLE.sub(value, text)
        if len(expanded) > MAX_TEXT:
            raise BadUsage(f"{self.path}:{line}: with its variables this is longer than {MAX_TEXT >> 20} MiB")
        return expanded

    def find_file(self, name: str) -> str:
        """Return where a file of the image lies beside the Dockerfile, "" where it is not there."""
        folder = os.path.dirname(self.path)
        for candidate in (name.lstrip("/"), os.path.basename(name)):
            path = os.path.join(folder, candidate)
            if candidate and ".." not in candidate.split("/") and os.path.isfile(path):
                return path
        return ""


def read_dockerfile(path: str, collector: Collector) -> None:
    """Add what a Dockerfile installs. Raises `BadUsage` for one without FROM."""
    image = Image(path, collector)
    stages: dict[str, Stage] = {}
    last: Stage | None = None
    for line, name, rest in _iter_instructions(collector.read_text(path)):
        if name == "FROM":
            words = [word for word in image.expand(rest, line).split() if not word.startswith("--")]
            if not words:
                raise BadUsage(f"{path}:{line}: FROM names no image")
            last = Stage(words[0], line)
            if len(words) == 3 and words[1].upper() == "AS":
                stages[words[2].lower()] = last
        elif last is not None:
            last.steps.append((line, name, rest))
        elif name == "ARG":
            _read_arg(image, line, rest)
    if last is None:
        raise BadUsage(f"{path} is no Dockerfile: it has no FROM")
    collector.environ = {}
    for stage in reversed(list(_stage_chain(last, stages))):
        if stage.base.lower() not in stages:
            _read_base(image, stage)
        for line, name, rest in stage.steps:
            if name == "ARG":
                _read_arg(image, line, rest)
            elif name == "ENV":
                _read_env(image, line, rest)
            elif name == "RUN":
                _read_run(image, line, rest)


def _stage_chain(stage: Stage, stages: dict[str, Stage]) -> Iterator[Stage]:
    """Yield a stage and those that it is built from."""
    visited: list[Stage] = []
    current: Stage | None = stage
    while current is not None and current not in visited:
        visited.append(current)
        yield current
        current = stages.get(current.base.lower())


def _iter_instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each instruction with its line: its name in capitals, and its text on one line; a heredoc's after ";"."""
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        first = index + 1
        parts: list[str] = []
        while index < len(lines):
            line = lines[index].strip()
            index += 1
            if line.startswith("#") or (parts and not line):
                continue
            parts.append(line[:-1].strip() if line.endswith("\\") else line)
            if not line.endswith("\\"):
                break
        logical = " ".join(parts).strip()
        heredoc = _HEREDOC.search(logical)
        if heredoc:
            body: list[str] = []
            while index < len(lines) and lines[index].strip() != heredoc[2]:
                body.append(lines[index].strip())
                index += 1
            index += 1
            script = " ; ".join(line for line in body if line and not line.startswith("#")).replace("\\ ; ", " ")
            logical = f"{logical[: heredoc.start()]} {script}"
        name, _, rest = logical.partition(" ")
        if name:
            yield first, name.upper(), rest.strip()


def _read_base(image: Image, stage: Stage) -> None:
    name = stage.base.partition("@")[0]
    python = PYTHON_IMAGE.fullmatch(name)
    if python:
        image.collector.limit_python(f"=={python[1]}.*")
    if python or PLAIN_IMAGES.fullmatch(name):
        return
    for pattern, requirement in BASE_IMAGES:
        match = re.fullmatch(pattern, name)
        if match:
            requirements.add_requirement(image.path, stage.line, requirement.format(*match.groups()), image.collector)
            return
    image.collector.remark(image.path, stage.line, f"what {stage.base} holds is not stated by its name")


def _read_arg(image: Image, line: int, rest: str) -> None:
    name, equals, value = rest.partition("=")
    if equals:
        image.defaults[name.strip()] = image.expand(value.strip().strip("\"'"), line)


def _read_env(image: Image, line: int, rest: str) -> None:
    rest = image.expand(rest, line)
    try:
        words = shlex.split(rest)
    except ValueError:
        image.collector.remark(image.path, line, "this ENV was not understood")
        return
    pairs = [word.partition("=")[::2] for word in words] if words and "=" in words[0] else [rest.partition(" ")[::2]]
    for name, value in pairs:
        image.variables[name] = value
        if name in ALLOWED_VARIABLES and "$" not in value and image.collector.environ is not None:
            image.collector.environ[name] = value


def _read_run(image: Image, line: int, rest: str) -> None:
    """Follow the installs of a RUN line."""
    while rest.startswith("--"):
        rest = rest.partition(" ")[2].lstrip()
    if rest.startswith("["):
        try:
            words: list[str] | None = [str(word) for word in json.loads(rest)]
        except (ValueError, RecursionError, TypeError):
            words = None
    else:
        words = requirements.split_words(image.expand(rest, line))
    if words is None:
        image.collector.remark(image.path, line, "this RUN was not understood")
        return
    is_conditional = any(word in CONDITIONS for word in words)
    for command in _split_commands(words):
        _read_command(image, line, command, is_conditional)


def _split_commands(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if word in SEPARATORS or (word and not word.strip(";&|()")):
            if command:
                yield command
            command = []
        else:
            command.append(word)


def _read_command(image: Image, line: int, words: list[str], is_conditional: bool) -> None:
    """Follow one command, where it is an installer's; one under a condition leaves open what it names."""
    start = next((index for index, word in enumerate(words) if _INSTALLER.fullmatch(word)), None)
    if start is None or any(not _is_before_command(word) for word in words[:start]):
        if any("pip install" in word or "conda install" in word for word in words):
            image.collector.remark(image.path, line, "an install within another command was not read")
        return
    arguments = [os.path.basename(words[start]), *words[start + 1 :]]
    if re.fullmatch(r"python[\d.]*", arguments[0]):
        if arguments[1:3] != ["-m", "pip"]:
            return
        arguments = arguments[2:]
    if arguments[:2] == ["uv", "pip"]:
        arguments = arguments[1:]
    tool, action = re.sub(r"[\d.]+$", "", arguments[0]), next(iter(arguments[1:]), "")
    if is_conditional and action in ("install", "uninstall"):
        scratch = Image(image.path, Collector(), image.defaults, image.variables)
        _follow_install(scratch, line, tool, action, arguments[2:])
        image.collector.forget(set(scratch.collector.entries) | set(scratch.collector.removed))
        image.collector.remark(image.path, line, "an install under a condition: what it names is not known")
    else:
        _follow_install(image, line, tool, action, arguments[2:])


def _is_before_command(word: str) -> bool:
    return bool(re.fullmatch(r"\w+=.*|sudo|exec|time|env|then|do|else|\{|-[EH]", word))


def _follow_install(image: Image, line: int, tool: str, action: str, words: list[str]) -> None:
    collector = image.collector
    if tool == "pip" and action == "install":
        before = {name: list(entries) for name, entries in collector.entries.items()}
        named = requirements.read_install_words(image.path, line, words, collector, image.find_file)
        is_upgrade = bool({"-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed"} & set(words))
        for name in named:
            new = collector.entries[name][len(before.get(name, [])) :]
            if is_upgrade or any(_is_pin(entry.specifier) for entry in new):
                collector.entries[name] = new
        if "--no-deps" not in words and MOVERS.intersection(named):
            collector.forget(name for name in before if name in RELEVANT_DISTRIBUTIONS and name not in named)
    elif tool == "pip" and action == "uninstall":
        for word in words:
            if not word.startswith("-"):
                collector.remove(word)
    elif tool in ("conda", "mamba", "micromamba") and action == "install":
        conda.read_install_words(image.path, line, words, collector)
    elif tool not in ("pip", "python") and action in ("sync", "install", "env", "add"):
        collector.remark(image.path, line, f"{tool} {action} was not followed: name its lock or environment file too")


def _is_pin(specifier: str) -> bool:
    try:
        return bool(find_pin(SpecifierSet(specifier)))
    except InvalidSpecifier:
        return False
