"""Measures `attncheck lint FOLDER` over changed copies of the tests' launches, beside reading them alone.

    python -m benchmarks.folder [--python PATH/TO/env/bin/python] [--files 1000] [--rounds 3]

PATH must hold attncheck. The yardstick reads the same files with the standard parsers: `ast` the same count of lines of
Python, ruamel.yaml the YAML files, `shlex` the scripts. `benchmarks.doctor` says how the figures are measured.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.doctor import format_table, measure_rounds, median_ratio
from benchmarks.launch import CORPUS

READ_ALL = """\
import ast, pathlib, shlex, sys
from ruamel.yaml import YAML
for path in pathlib.Path(sys.argv[1]).rglob("*.*"):
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml"):
        YAML(typ="safe", pure=True).load(text)
    else:
        shlex.split(text, comments=True)
    ast.parse("\\n".join(f"call({line!r})" for line in text.splitlines()))
"""


def write_copies(folder: Path, count: int) -> None:
    """Write `count` launches into folders of a hundred: the corpus over and over, with other numbers."""
    chooser = random.Random(1)
    paths = sorted(path for path in CORPUS.glob("*/*") if path.suffix in (".sh", ".yaml", ".yml"))
    for number in range(count):
        path = paths[number % len(paths)]
        text = path.read_text(encoding="utf-8")
        if number >= len(paths):
            text = text.replace("1e-5", f"{chooser.randint(1, 9)}e-6").replace("1024", str(chooser.choice((512, 2048))))
        place = folder / f"{number // 100:03d}"
        place.mkdir(exist_ok=True)
        (place / f"{number}_{path.name}").write_text(text, encoding="utf-8")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_copies(Path(folder), options.files)
        lint = [options.python, "-m", "attncheck", "lint", folder, "--target", "h100x8", "--fail-on", "never"]
        forget = ["sh", "-c", 'TMPDIR=$(mktemp -d) && export TMPDIR && "$@"; rm -r "$TMPDIR"', "sh"]  # no kept answer
        torch = [options.python, "-c", "import torch"]
        commands = {
            "import torch": torch,
            "read alone": [options.python, "-c", READ_ALL, folder],
            "lint": [*forget, *lint],
        }
        costs = measure_rounds(commands, options.rounds)
    print(format_table(costs))
    print(f"\nlint of {options.files} files: {median_ratio(costs, 'lint', 'read alone', 'cpu_s'):.2f} × reading them")


if __name__ == "__main__":
    main()
