"""Measures attncheck doctor beside `import torch` and the environment reports of other tools, in one run.

    python -m benchmarks.doctor --python PATH/TO/env/bin/python [--rounds 5]

PATH must hold attncheck, torch and transformers; ds_report is measured where deepspeed is installed. The commands are
run in turn, round after round, so that a change in the machine's load meets all of them; each figure is the median,
and each ratio is the median of the ratios of one round. CPU time and peak memory count every child of the command
(peak: the largest single process).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SINGLE_IMPORTS = (
    "torch",
    "transformers.modeling_flash_attention_utils",
    "ring_flash_attn",
    "liger_kernel.transformers",
)
# Runs a command and prints "cpu_s wall_s peak_kib": its own process, so that no other child is counted in.
METER_SCRIPT = """\
import os, resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
wall = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, wall, used.ru_maxrss)
"""


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a command."""

    cpu_s: float
    wall_s: float
    peak_mib: float


def measure_command(command: Sequence[str]) -> Cost:
    """Return the cost of one run of `command`, its children included."""
    # PYTHONDONTWRITEBYTECODE: as attncheck's own children run, so that no command warms up another's byte code.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    meter = subprocess.run(
        [sys.executable, "-c", METER_SCRIPT, *command],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=tempfile.gettempdir(),  # `python -m` would find this tree's attncheck in the tree
    )
    cpu, wall, peak = (float(figure) for figure in meter.stdout.split())
    return Cost(cpu, wall, peak / 1024)


def list_commands(python: str) -> dict[str, list[str]]:
    """Return the commands to compare, by their name in the table."""
    doctor = [python, "-m", "attncheck", "doctor"]
    commands = {
        "python -c pass": [python, "-c", "pass"],
        "import torch": [python, "-c", "import torch"],
        "doctor --lane static": [*doctor, "--lane", "static"],
        "doctor": doctor,
        "torch collect_env": [python, "-m", "torch.utils.collect_env"],
    }
    folder = Path(python).parent
    for name, program in (("transformers env", "transformers"), ("ds_report", "ds_report")):
        if (folder / program).exists():
            commands[name] = [str(folder / program), *name.split()[1:]]
    for module in SINGLE_IMPORTS[1:]:
        if subprocess.run([python, "-c", f"import {module.split('.')[0]}"], capture_output=True).returncode == 0:
            commands[f"import {module}"] = [python, "-c", f"import {module}"]
    return commands


def measure_rounds(commands: dict[str, list[str]], rounds: int) -> dict[str, list[Cost]]:
    """Return the costs of every command in `rounds` rounds, after one that is not counted."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    started = time.monotonic()
    for index in range(rounds + 1):
        for name, command in commands.items():
            cost = measure_command(command)
            if index:
                costs[name].append(cost)
        print(f"round {index} of {rounds}, {time.monotonic() - started:.0f} s", file=sys.stderr)
    return costs


def median_ratio(costs: dict[str, list[Cost]], name: str, base: str, field: str) -> float:
    """Return the median over the rounds of one figure of `name` in units of `base`'s."""
    pairs = zip(costs[name], costs[base])
    return statistics.median(getattr(cost, field) / getattr(other, field) for cost, other in pairs)


def format_table(costs: dict[str, list[Cost]]) -> str:
    """Return the figures as a Markdown table."""
    rows = ["| command | CPU s | wall s | peak MiB | CPU ÷ import torch |", "|---|---|---|---|---|"]
    for name, runs in costs.items():
        cpu, wall, peak = (
            statistics.median(getattr(run, field) for run in runs) for field in ("cpu_s", "wall_s", "peak_mib")
        )
        rows.append(
            f"| `{name}` | {cpu:.3f} | {wall:.3f} | {peak:.0f} "
            f"| {median_ratio(costs, name, 'import torch', 'cpu_s'):.2f} |"
        )
    return "\n".join(rows)


def format_goals(costs: dict[str, list[Cost]]) -> str:
    """Return the measured figures beside their goals."""
    singles = [name for name in costs if name.startswith("import ")]
    slowest = max(singles, key=lambda name: statistics.median(cost.wall_s for cost in costs[name]))
    peak = statistics.median(cost.peak_mib for cost in costs["doctor --lane static"])
    static = median_ratio(costs, "doctor --lane static", "import torch", "cpu_s")
    full = median_ratio(costs, "doctor", slowest, "wall_s")
    return (
        f"static lane: {static:.3f} × `import torch` in CPU time (goal 0.15)\n"
        f"static lane: {peak:.0f} MiB at its peak (goal 40)\n"
        f"full run: {full:.2f} × the slowest single import, `{slowest}`, in wall time (goal 1.3)"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    costs = measure_rounds(list_commands(options.python), options.rounds)
    print(format_table(costs))
    print()
    print(format_goals(costs))


if __name__ == "__main__":
    main()
