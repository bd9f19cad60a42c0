"""Measures `attncheck lint` and the second start of `attncheck run` beside `import torch`, in one run.

    python -m benchmarks.launch [--python PATH/TO/env/bin/python] [--rounds 5]

PATH must hold attncheck and torch. `benchmarks.doctor` says how the figures are measured; its first round, which is not
counted, fills the cache of `run`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.doctor import format_table, measure_rounds, median_ratio

CORPUS = Path(__file__).parents[1] / "tests" / "data" / "launch"
LAUNCH_FILES = (
    "openrlhf/0.8.11_ppo_llama_ray_ring.sh",
    "verl/grpo_qwen3_next_80b.sh",
    "axolotl/0_18_0_alst_llama3_8b_fsdp2_alst.yaml",
    "llamafactory/qwen3_full_sft.yaml",
)


def list_commands(python: str, cache: str) -> dict[str, list[str]]:
    """Return the commands to compare, by their name in the table."""
    attncheck = [python, "-m", "attncheck"]
    policy = ["--checks", "doctor", "--fail-on", "never"]
    return {
        "import torch": [python, "-c", "import torch"],
        **{f"lint {path}": [*attncheck, "lint", str(CORPUS / path)] for path in LAUNCH_FILES},
        "run, kept answer": ["env", f"XDG_CACHE_HOME={cache}", *attncheck, "run", *policy, "--", "true"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        costs = measure_rounds(list_commands(options.python, cache), options.rounds)
    print(format_table(costs))
    print()
    slowest = max(median_ratio(costs, name, "import torch", "cpu_s") for name in costs if name.startswith("lint "))
    print(f"lint: at most {slowest:.2f} × `import torch` in CPU time")
    print(
        "run with a kept answer: "
        f"{median_ratio(costs, 'run, kept answer', 'import torch', 'wall_s'):.2f} × in wall time"
    )


if __name__ == "__main__":
    main()
