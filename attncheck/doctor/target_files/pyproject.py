"""Reads the dependencies of a pyproject.toml's [project] (PEP 621) or [tool.poetry], without extras and groups.

Sources: https://packaging.python.org/en/latest/specifications/pyproject-toml/ and
https://python-poetry.org/docs/dependency-specification/ (`^1.2`, `~1.2`, and `1.2` for exactly that version).
"""

import re

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.toml import parse_toml
from attncheck.doctor.queries.requirements import canonical_name
from attncheck.doctor.target_files.collector import Collector, as_list, as_table, as_text
from attncheck.doctor.target_files.requirements import add_requirement

POETRY_VERSION = re.compile(r"([\^~]?)\s*(\d+(?:\.\d+)*)")
UNCERTAIN = ("optional", "markers", "python", "platform")  # keys of a Poetry dependency that not every install takes
NOT_FROM_AN_INDEX = ("git", "url", "path", "workspace")  # keys of [tool.uv.sources] that leave the version unknown


def read_pyproject(path: str, collector: Collector) -> None:
    """Add the dependencies of a project. Raises `BadUsage` for a file without a dependency table."""
    table = parse_toml(collector.read_text(path), path)
    project = as_table(table.get("project"))
    tools = as_table(table.get("tool"))
    poetry = as_table(as_table(tools.get("poetry")).get("dependencies"))
    if not project and not poetry:
        raise BadUsage(f"{path} lists no dependencies: it has no [project]")
    collector.limit_python(as_text(project.get("requires-python")))
    for name, item in poetry.items():
        texts = [_read_poetry(text) for text in as_text(as_table(item).get("version", item)).split(",")]
        if name == "python":
            collector.limit_python(",".join(texts))
        elif as_table(item).keys().isdisjoint(UNCERTAIN):
            collector.add(name, ",".join(filter(None, texts)))
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


def _read_poetry(text: str) -> str:
    """Return one of Poetry's constraints in the notation of PEP 440; "" for any version, or one of several."""
    match = POETRY_VERSION.fullmatch(text.strip())
    if match is None:
        return "" if "|" in text or text.strip() == "*" else text.strip()
    if not match[1]:
        return f"=={match[2]}"
    numbers = [int(number) for number in match[2].split(".")]
    last = min(1, len(numbers) - 1)
    if match[1] == "^":
        last = next((index for index, number in enumerate(numbers) if number), len(numbers) - 1)
    limit = ".".join(map(str, (*numbers[:last], numbers[last] + 1)))
    return f">={match[2]},<{limit}"
