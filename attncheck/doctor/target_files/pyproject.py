"""Reads the dependencies of a pyproject.toml: [project] (PEP 621) and [tool.poetry]; without extras and groups.

Source: https://packaging.python.org/en/latest/specifications/pyproject-toml/; poetry's own notation
(https://python-poetry.org/docs/dependency-specification/) names a version only where it is exact.
"""

from __future__ import annotations

import re

from attncheck.core.errors import BadUsage
from attncheck.doctor.queries.requirements import canonical_name
from attncheck.doctor.target_files.collector import Collector, as_list, as_table, as_text, parse_toml
from attncheck.doctor.target_files.requirements import add_requirement

_EXACT = re.compile(r"\d+(\.\d+)*([a-z+.-][\w.+-]*)?")
NOT_FROM_AN_INDEX = ("git", "url", "path", "workspace")  # keys of [tool.uv.sources]: the version is not known


def read_pyproject(path: str, collector: Collector) -> None:
    """Add the dependencies of a project. Raises `BadUsage` for a file without a table of them."""
    table = parse_toml(collector.read_text(path), path)
    project = as_table(table.get("project"))
    tools = as_table(table.get("tool"))
    poetry = as_table(tools.get("poetry"))
    if not project and not poetry:
        raise BadUsage(f"{path} names no dependencies: it has neither [project] nor [tool.poetry]")
    collector.limit_python(as_text(project.get("requires-python")))
    sources = {
        canonical_name(name)
        for name, source in as_table(as_table(tools.get("uv")).get("sources")).items()
        if any(key in as_table(source) for key in NOT_FROM_AN_INDEX)
    }
    for text in as_list(project.get("dependencies")):
        name = canonical_name(re.split(r"[^\w.-]", as_text(text).strip())[0])
        if name in sources:
            collector.add(name)
        else:
            add_requirement(path, 0, as_text(text), collector)
    if "dependencies" in as_list(project.get("dynamic")):
        collector.remark(path, 0, "its dependencies are dynamic: they are known when it is built")
    _add_poetry(path, as_table(poetry.get("dependencies")), collector)
    left_out = [*as_table(project.get("optional-dependencies")), *as_table(table.get("dependency-groups"))]
    if left_out:
        collector.remark(path, 0, f"extras and groups were not read: {', '.join(sorted(left_out))}")


def _add_poetry(path: str, dependencies: dict[str, object], collector: Collector) -> None:
    for name, value in dependencies.items():
        if name == "python" or as_table(value).get("optional") is True:
            continue
        if isinstance(value, list):
            collector.remark(path, 0, f"{name} has several constraints: which one holds was not read")
            continue
        text = (as_text(value) or as_text(as_table(value).get("version"))).strip()
        specifier = f"=={text}" if _EXACT.fullmatch(text) else "" if text == "*" else text
        collector.add(name, specifier, as_text(as_table(value).get("markers")) or None)
