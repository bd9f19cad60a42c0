"""Reads conda's environment.yml: its packages, and the lines of its pip section; and the words of `conda install`.

Source: https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/pkg-specs.html (25.5): `==` and a build
string name one version, `=2.5` any 2.5.*. `=2.5.1` is taken as 2.5.1: `conda env export --no-builds` writes pins so.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from attncheck.core.errors import BadUsage
from attncheck.doctor.target_files.collector import Collector, as_list, as_table, as_text
from attncheck.doctor.target_files.requirements import read_line

PYPI_NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}
_SPECIFICATION = re.compile(r"(?:[\w./-]+::)?([A-Za-z0-9_][\w.-]*)\s*(.*)")
_OPTIONS_WITH_VALUE = ("-c", "--channel", "-n", "--name", "-p", "--prefix", "-f", "--file", "--solver", "--repodata-fn")


def read_environment(path: str, collector: Collector) -> None:
    """Add the packages of an environment.yml. Raises `BadUsage` for one that does not parse or lists none."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    text = collector.read_text(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an anchor that is used again
            table = as_table(YAML(typ="safe", pure=True).load(text))
    except (YAMLError, ValueError, RecursionError, TypeError, AttributeError, KeyError) as error:
        raise BadUsage(f"cannot read {path}: {str(error).splitlines()[0] if str(error) else 'no YAML'}") from None
    if not isinstance(table.get("dependencies"), list):
        raise BadUsage(f"{path} is no conda environment: it has no list of dependencies")
    for value in as_list(table["dependencies"]):
        if as_text(value):
            add_specification(path, value, collector)
        for line in as_list(as_table(value).get("pip")):
            if as_text(line):
                read_line(path, 0, line.strip(), collector)


def add_specification(path: str, text: str, collector: Collector, number: int = 0) -> None:
    """Add one package as conda names it: "pytorch::pytorch=2.5.1", "numpy>=1.26,<2"."""
    match = _SPECIFICATION.fullmatch(text.strip())
    if match is None:
        collector.remark(path, number, f"{text!r} was not understood")
        return
    name, specifier = match[1].lower(), _to_pep_440(match[2].strip())
    if name == "python":
        collector.limit_python(specifier)
    elif not name.startswith("_"):
        collector.add(PYPI_NAMES.get(name, name), specifier)


def _to_pep_440(text: str) -> str:
    """Return a version of conda's as PEP 440 writes it."""
    text = text.split("[")[0].strip()
    if not text or text == "*":
        return ""
    if text.startswith("=") or (text[0].isdigit() and "|" not in text and "," not in text):
        is_exact = text.startswith("==")
        version, _, build = text.lstrip("=").strip().replace(" ", "=").partition("=")
        if version.endswith("*"):
            return f"=={version.rstrip('.*')}.*"
        if is_exact or build or version.count(".") >= 2:
            return f"=={version}"
        return f"=={version}.*"
    return text


def read_install_words(path: str, number: int, words: Sequence[str], collector: Collector) -> None:
    """Add what the words after `conda install` name."""
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word in _OPTIONS_WITH_VALUE:
            if word in ("-f", "--file"):
                collector.remark(path, number, "a file of conda's was not read")
            queue = queue[1:]
        elif not word.startswith("-"):
            add_specification(path, word, collector, number)
