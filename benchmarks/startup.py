"""Measures how long attncheck takes to start beside `import torch`, under several releases of typer in one run.

    python -m benchmarks.startup NAME=PATH/TO/env/bin/python … [--rounds 9]

Each environment holds attncheck and torch, and a typer of its own; its name is for the table. The commands of all
environments are run in turn, as in `benchmarks.doctor`; each ratio is the median of the ratios of one round.
"""

from __future__ import annotations

import argparse

from benchmarks.doctor import format_table, measure_rounds

COMMANDS = (("--version",), ("--help",), ("doctor", "--lane", "static"))


def list_commands(environments: dict[str, str]) -> dict[str, list[str]]:
    """Return the commands to compare, by their name in the table; torch is imported in the first environment."""
    commands = {"import torch": [next(iter(environments.values())), "-c", "import torch"]}
    for arguments in COMMANDS:
        for name, python in environments.items():
            commands[f"{' '.join(arguments)}, {name}"] = [python, "-m", "attncheck", *arguments]
    return commands


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("environments", nargs="+", metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    environments = dict(text.split("=", 1) for text in options.environments)
    print(format_table(measure_rounds(list_commands(environments), options.rounds)))


if __name__ == "__main__":
    main()
