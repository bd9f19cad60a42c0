"""Measures `attncheck lint` and the second start of `attncheck run` beside `import torch`, in one run.

    python -m benchmarks.launch [--python PATH/TO/env/bin/python] [--rounds 5]

PATH must hold attncheck and torch. How the figures come about is told in `benchmarks.doctor`; its first round, which is
not counted, fills the cache of `run`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.doctor import ratio, rounds_of, table

CORPUS = Path(__file__).parents[1] / "tests" / "data" / "launch"
LAUNCHES = (
    "openrlhf/0.8.11_ppo_llama_ray_ring.sh",
    "verl/grpo_qwen3_next_80b.sh",
    "axolotl/0_18_0_alst_llama3_8b_fsdp2_alst.yaml",
    "llamafactory/qwen3_full_sft.yaml",
)


def commands(python: str, cache: str) -> dict[str, list[str]]:
    """Return the commands to compare, by the name they go by in the table."""
    attncheck = [python, "-m", "attncheck"]
    policy = ["--checks", "doctor", "--fail-on", "never"]
    return {
        "import torch": [python, "-c", "import torch"],
        **{f"lint {path}": [*attncheck, "lint", str(CORPUS / path)] for path in LAUNCHES},
        "run, kept answer": ["env", f"XDG_CACHE_HOME={cache}", *attncheck, "run", *policy, "--", "true"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        costs = rounds_of(commands(options.python, cache), options.rounds)
    print(table(costs))
    print()
    slowest = max(ratio(costs, name, "import torch", "cpu_s") for name in costs if name.startswith("lint "))
    print(f"lint: at most {slowest:.2f} × `import torch` in CPU time")
    print(f"run with a kept answer: {ratio(costs, 'run, kept answer', 'import torch', 'wall_s'):.2f} × in wall time")


if __name__ == "__main__":
    main()
