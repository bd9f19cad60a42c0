"""One cheap call of each command or more, in an environment without torch, and the exit code that it must have.

Together they use arguments that may be left out, options whose default is None, and switches.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.snapshots import FOLDER

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
LAUNCH = "trl sft --model_name_or_path model --packing true --attn_implementation sdpa --output_dir out\n"
# A warning of ours, or of the standard library about us; what other packages do is theirs.
WARNING = re.compile(r"^(?!.*site-packages/(?!attncheck/)).*\b\w+Warning: ", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """A command line, its exit code, and whether its output is the same in every environment."""

    line: str
    code: int = 0
    is_fixed: bool = False

    @property
    def argv(self) -> list[str]:
        """The words after `attncheck`."""
        return self.line.split()


CALLS = (
    Call("--help"),
    Call("--version", 0, True),
    Call("backends --timeout 20", 3),
    Call("baseline --checks doctor --select ATN2 --baseline baseline.json"),
    Call("bench model --seqlen 64", 3),
    Call("bench --predict", 2, True),
    Call("bench --published --seqlen 64", 2, True),
    Call("bench --ring-size 2 --min-of-published 0.8", 2, True),
    Call("demo"),
    Call("determinism model --repeat 2", 3),
    Call("diff facts.json other.json", 0, True),
    Call("doctor model --lane static --timeout 20", 1),
    Call("doctor --lane static --deep --select ATN459", 0),
    Call("doctor --facts facts.json --select ATN140 --output markdown=report.md", 1, True),
    Call("doctor --facts facts.json --target h100x8", 1, True),
    Call("explain ATN140", 0, True),
    Call("gate --checks doctor --select ATN100", 1),
    Call("gate --checks lint --launch train.sh --fail-on warning", 1),
    Call("init"),
    Call("init --write"),
    Call("trust"),
    Call("trust --list"),
    Call("trust --revoke"),
    Call("labels train.sh", 3),
    Call("agree train.sh", 3),
    Call("lint train.sh --model model"),
    Call("lint train.sh --format json --select ATN4 --framework trl"),
    Call("lock lock.json --facts facts.json", 0, True),
    Call("lock lock.json --check --facts facts.json", 0, True),
    Call("parity --list --suite quick", 0, True),
    Call("parity model --budget 5", 3),
    Call("probe model --lane static"),
    Call("probe --standalone probe.py"),
    Call("schema policy", 0, True),
    Call("report kept.json --format markdown", 1, True),
    Call("report kept.json --bug ring-flash-attn", 0, True),
    Call("rules --format json", 0, True),
    Call("run --checks doctor --select ATN2 -- true"),
    Call("run --checks doctor --select ATN100 --no-cache -- true", 1),
    Call("schema", 0, True),
    Call("selftest --list --inject ATN102", 0, True),
    Call("smoke model --steps 2 --only training", 3),
    Call("smoke train.sh --no-fix", 3),
    Call("upgrade transformers==5.23.0 --facts facts.json", 1, True),
)


def lay_files(folder: Path, kept_report: str) -> None:
    """Lay what the calls read into an empty folder."""
    shutil.copy(FOLDER / "h200.json", folder / "facts.json")
    shutil.copy(FOLDER / "h200x2.json", folder / "other.json")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "train.sh").write_text(LAUNCH, encoding="utf-8")
    (folder / "kept.json").write_text(kept_report, encoding="utf-8")


def run_call(call: Call, programs: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a call in an environment, given by its `bin`, and in a folder; only what the system has is around it."""
    environ = {
        "PATH": f"{programs}{os.pathsep}{os.defpath}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONWARNINGS": "default,ignore::ResourceWarning",
    }
    words = [str(programs / "attncheck"), *call.argv]
    return subprocess.run(
        words, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


def find_problems(call: Call, done: subprocess.CompletedProcess[str], fixed_output: str | None) -> list[str]:
    """Return what is wrong with a call that ended; `fixed_output` is what it printed in the reference environment."""
    problems = []
    if done.returncode != call.code:
        problems.append(f"exit code {done.returncode} instead of {call.code}: {done.stderr.strip()[-300:]}")
    if "Traceback" in done.stderr or "a bug in attncheck" in done.stderr:
        problems.append(f"its own error: {done.stderr.strip()[-300:]}")
    if warning := WARNING.search(done.stderr):
        problems.append(f"a warning: {warning[0]}")
    if call.is_fixed and fixed_output is not None and done.stdout != fixed_output:
        problems.append("its output is another than in the reference environment")
    return [f"attncheck {call.line}: {problem}" for problem in problems]
