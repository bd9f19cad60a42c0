"""What parity costs: wall time by number of cases, and by length with the oracle's share; as ratios within one run.

`python -m benchmarks.parity [--device cuda] [--rounds 3]` measures the environment of this interpreter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

SEQLENS = (129, 320, 1000, 4096, 8191, 32768, 131072)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=131072)
    options = parser.parse_args()
    torch_s = statistics.median(time_command([sys.executable, "-c", "import torch"])[0] for _ in range(options.rounds))
    print("\n".join(suite_rows(options.device, options.rounds, torch_s)))
    print()
    print("\n".join(length_rows(options.device, options.longest)))


def time_command(command: list[str]) -> tuple[float, str]:
    """Return the seconds that a command takes, and what it prints."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - began, done.stdout


def run_parity(*arguments: str) -> tuple[float, dict[str, Any]]:
    """Return the wall seconds of `attncheck parity` with these arguments, and its report."""
    command = [sys.executable, "-m", "attncheck", "parity", "--format", "json", "--fail-on", "never", *arguments]
    seconds, output = time_command(command)
    report: dict[str, Any] = json.loads(output)
    return seconds, report


def suite_rows(device: str, rounds: int, torch_s: float) -> Iterator[str]:
    """Yield the table of suites: a whole command, start-up included."""
    yield f"`import torch`: {torch_s:.1f} s"
    yield ""
    yield "| suite | cases | runs | wall s | ÷ import torch | ms a run |"
    yield "|---|---|---|---|---|---|"
    for suite in ("quick", "standard"):
        results = [run_parity("--suite", suite, "--device", device) for _ in range(rounds)]
        seconds = statistics.median(wall_s for wall_s, _ in results)
        runs = [run for run in results[0][1]["runs"] if run["outcome"] == "ok"]
        cases = len({run["case"]["name"] for run in runs})
        ms_per_run = 1e3 * seconds / len(runs)
        yield f"| {suite} | {cases} | {len(runs)} | {seconds:.1f} | {seconds / torch_s:.1f} | {ms_per_run:.0f} |"


def length_rows(device: str, max_seqlen: int) -> Iterator[str]:
    """Yield the table of lengths: the backend's own time, the oracle's with scoring, and the oracle's share."""
    yield "| case | backend | forward and backward ms | oracle and scores ms | oracle's share |"
    yield "|---|---|---|---|---|"
    case_options = [
        name for length in SEQLENS if length <= max_seqlen for name in ("--case", f"dense-causal-s{length}-h*normal")
    ]
    _, report = run_parity("--suite", "full", "--device", device, "--backend", "sdpa_flash", *case_options)
    for run in sorted(report["runs"], key=lambda run: (max(run["case"]["seqlens_q"]), run["case"]["name"])):
        if run["outcome"] == "ok" and run["case"]["dtype"] == "bfloat16":
            share = run["oracle_ms"] / (run["oracle_ms"] + run["call_ms"])
            yield (
                f"| {run['case']['name']} | {run['backend']} | {run['call_ms']:.1f} | {run['oracle_ms']:.1f} "
                f"| {100 * share:.0f} % |"
            )


if __name__ == "__main__":
    main()
