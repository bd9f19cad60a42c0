"""Prints the table of every command on every Python of this machine: `python -m tests.pythons [oldest] [newest]`."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.pythons.environments import (
    DEPENDENCIES,
    Dependencies,
    build_wheel,
    list_packages,
    list_versions,
    make_environment,
)
from tests.pythons.interpreters import VARIABLE, find_interpreter
from tests.pythons.matrix import GROUP, check_environment, read_reference


@dataclass(frozen=True)
class Column:
    """One Python with its oldest or newest dependencies: what is wrong with each command; None if it is missing."""

    version: str
    dependencies: Dependencies
    problems: dict[str, list[str]] | None
    packages: str = ""

    def mark(self, command: str) -> str:
        """Return the table's word for a command."""
        return "—" if self.problems is None else "FAIL" if self.problems[command] else "pass"


def measure_column(version: str, dependencies: Dependencies, wheel: Path, folder: Path) -> Column:
    """Make the environment, run every command in it, and return its column."""
    interpreter = find_interpreter(version)
    if interpreter is None:
        return Column(version, dependencies, None)
    print(f"{version} {dependencies}: {interpreter}", file=sys.stderr)
    programs = make_environment(folder / "environment", interpreter, wheel, dependencies)
    (folder / "work").mkdir()
    problems = check_environment(programs, folder / "work", read_reference())
    full = subprocess.run(
        [interpreter, "-c", "import platform; print(platform.python_version())"], capture_output=True, text=True
    )
    return Column(full.stdout.strip(), dependencies, problems, list_packages(folder / "environment"))


def format_table(columns: list[Column]) -> str:
    """Return the table in Markdown, and what each environment holds."""
    heads = [f"{column.version} {column.dependencies}" for column in columns]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(columns) + 1) + "|"]
    for command in (GROUP, *read_reference().commands):
        lines.append(f"| `{command}` | " + " | ".join(column.mark(command) for column in columns) + " |")
    held = [f"- {head}: {column.packages}" for head, column in zip(heads, columns, strict=True) if column.packages]
    return "\n".join([*lines, "", *held])


def main() -> int:
    """Measure and print; return 1 if a command fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__)
    parser.add_argument("dependencies", nargs="*", choices=[*DEPENDENCIES, []], metavar="oldest|newest")
    chosen = parser.parse_args().dependencies or DEPENDENCIES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        columns = []
        for version in list_versions():
            for dependencies in chosen:
                place = folder / f"{version}-{dependencies}"
                place.mkdir()
                columns.append(measure_column(version, dependencies, wheel, place))
    print(f"reference: Python {platform.python_version()}\n\n{format_table(columns)}")
    missing = sorted({column.version for column in columns if column.problems is None})
    if missing:
        print(f"\nnot on this machine: Python {', '.join(missing)}; {VARIABLE} names interpreters elsewhere")
    problems = [
        f"{column.version} {column.dependencies}: {problem}"
        for column in columns
        for lines in (column.problems or {}).values()
        for problem in lines
    ]
    print("\n".join(["", *problems]) if problems else "")
    return 1 if problems or len(missing) == len(columns) else 0


if __name__ == "__main__":
    sys.exit(main())
