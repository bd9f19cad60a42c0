"""Reads the dependencies of a pyproject.toml's [project] (PEP 621), without extras and groups.

Source: https://packaging.python.org/en/latest/specifications/pyproject-toml/.
"""

import re

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.toml import parse_toml
from attncheck.doctor.queries.requirements import canonical_name
from attncheck.doctor.target_files.collector import Collector, as_list, as_table, as_text
from attncheck.doctor.target_files.requirements import add_requirement

NOT_FROM_AN_INDEX = ("git", "url", "path", "workspace")  # keys of [tool.uv.sources] that leave the version unknown


def read_pyproject(path: str, collector: Collector) -> None:
    """Add the dependencies of a project. Raises `BadUsage` for a file without a dependency table."""
    table = parse_toml(collector.read_text(path), path)
    project = as_table(table.get("project"))
    tools = as_table(table.get("tool"))
    if not project:
        raise BadUsage(f"{path} lists no dependencies: it has no [project]")
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
        collector.remark(path, 0, "its dependencies are dynamic and known only when it is built")
    left_out = [*as_table(project.get("optional-dependencies")), *as_table(table.get("dependency-groups"))]
    if left_out:
        collector.remark(path, 0, f"extras and groups were not read: {', '.join(sorted(left_out))}")
