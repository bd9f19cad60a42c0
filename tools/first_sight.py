"""Draws launches that nobody has looked at, lints each in its own checkout, and counts how a judged sheet came out.

    python -m tools.first_sight draw FOLDER --seed 7 --count 60 --sheet sheet.json [--without MANIFEST …]
    python -m tools.first_sight sum sheet.json

FOLDER holds git directories, `OWNER+NAME` or `OWNER+NAME/repo`. Repositories that a MANIFEST names (any JSON with
"repo" keys, such as an earlier sheet) are left out. Launches are drawn by file name and by the framework that their
text suggests, one framework after the other, at most two of a repository.

The sheet has empty verdicts. Write them after reading the code that runs, and before anything is fixed: only the first
look says how lint does on a launch that it has not seen. "in_scope" and "read_rightly" take true or false, "truth" the
framework that runs, a finding's "verdict" takes "right", "wrong" or "noise", and "misses" a line for each fault that
was not reported.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

MAX_BYTES = 2_000_000  # of a file that is exported
MAX_TEXT = 200_000  # of a launch
PER_REPOSITORY = 2
LINT_SECONDS = 180
NAMES = re.compile(
    r"(?:^|/)[^/]*(?:train|sft|dpo|grpo|ppo|rloo|rlhf|finetun|pretrain|launch|run)[^/]*\.(?:sh|slurm|sbatch|ya?ml)$",
    re.IGNORECASE,
)
OTHER_FOLDERS = re.compile(r"(?:^|/)(?:\.github|node_modules|tests?|docs?|third_party|vendor|wandb)/", re.IGNORECASE)
STARTS = re.compile(
    r"torchrun|accelerate\s+launch|deepspeed\s|torch\.distributed|ray\s+job\s+submit|llamafactory-cli|swift\s+(?:sft|rlhf|pt)"
    r"|axolotl|\btrl\s+\w+|main_ppo|python3?\s+(?:-u\s+)?(?:-m\s+)?[\w./-]*(?:train|sft|dpo|grpo|ppo|finetun|rl)\w*"
)
CONFIGURES = re.compile("finetuning_type|base_model:")
SUGGESTIONS: Mapping[str, str] = {  # framework -> what its launches hold; the first that fits
    "verl": r"verl|main_ppo|fsdp_sft_trainer",
    "openrlhf": r"openrlhf",
    "nemo-rl": r"nemo_rl|run_grpo|policy\.model_name",
    "slime": r"--rollout-batch-size|--actor-num-gpus-per-node",
    "llamafactory": r"llamafactory|finetuning_type",
    "ms-swift": r"\bswift\b",
    "axolotl": r"axolotl|^base_model:",
    "megatron": r"--tensor-model-parallel-size|pretrain_gpt",
    "trl": r"\btrl\b|open_r1|grpo|dpo|sft",
    "transformers": r"per_device_train_batch_size",
    "other": r"",
}


def find_git_directory(place: Path) -> Path | None:
    """Return the git directory at or below a place, None if there is none."""
    candidates = (place / "repo", place / "repo.git", place)
    return next((path for path in candidates if (path / "HEAD").exists() or (path / ".git").exists()), None)


def run_git(git: Path, *arguments: str, text: bytes = b"") -> bytes:
    """Return what git prints, b"" if it fails."""
    return subprocess.run(["git", "-C", str(git), *arguments], input=text, capture_output=True, check=False).stdout


def list_files(git: Path, commit: str) -> dict[str, str]:
    """Return the blob of each file of a commit by its path."""
    rows = (row.partition(b"\t") for row in run_git(git, "ls-tree", "-r", "-z", commit).split(b"\0"))
    return {
        path.decode(errors="surrogateescape"): entry.split()[2].decode()
        for entry, _, path in rows
        if entry[:3] == b"100"
    }


def read_blobs(git: Path, blobs: Sequence[str], limit: int) -> Iterator[bytes | None]:
    """Yield the content of each blob, None if it is missing or larger than `limit`."""
    output = run_git(git, "cat-file", "--batch", text="".join(f"{blob}\n" for blob in blobs).encode())
    place = 0
    for _ in blobs:
        end = output.find(b"\n", place)
        head = output[place:end].split()
        place = end + 1
        if len(head) < 3:
            yield None
            continue
        size = int(head[2])
        yield output[place : place + size] if size <= limit else None
        place += size + 1


def export(git: Path, commit: str, folder: Path) -> None:
    """Write the files of a commit into a folder, as far as they are here."""
    files = list_files(git, commit)
    for path, content in zip(files, read_blobs(git, list(files.values()), MAX_BYTES)):
        if content is not None:
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def suggest_framework(text: str) -> str:
    """Return the framework that a launch's text suggests; the draw alone goes by it."""
    return next(name for name, pattern in SUGGESTIONS.items() if re.search(pattern, text, re.MULTILINE))


def find_candidates(folder: Path, left_out: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the launches of all repositories below a folder, in the order of their names."""
    for place in sorted(folder.iterdir()):
        repository, git = place.name.replace("+", "/", 1), find_git_directory(place)
        if git is None or repository in left_out:
            continue
        commit = run_git(git, "rev-parse", "HEAD").decode().strip()
        files = list_files(git, commit)
        paths = [path for path in files if NAMES.search(path) and not OTHER_FOLDERS.search(path)]
        for path, content in zip(paths, read_blobs(git, [files[path] for path in paths], MAX_TEXT)):
            text = content.decode(errors="replace") if content is not None else ""
            if STARTS.search(text) or (
                path.endswith((".yaml", ".yml")) and re.search("finetuning_type|base_model:", text)
            ):
                row = {"repo": repository, "commit": commit, "path": path}
                yield {**row, "suggests": suggest_framework(f"{path}\n{text}")}


def draw(candidates: Sequence[dict[str, Any]], seed: int, count: int) -> list[dict[str, Any]]:
    """Return launches drawn one framework after the other, at most `PER_REPOSITORY` of a repository."""
    generator = random.Random(seed)
    by_framework: dict[str, list[dict[str, Any]]] = {}
    for candidate in generator.sample(list(candidates), len(candidates)):
        by_framework.setdefault(candidate["suggests"], []).append(candidate)
    drawn: list[dict[str, Any]] = []
    taken: Counter[str] = Counter()
    while len(drawn) < count and any(by_framework.values()):
        for rows in by_framework.values():
            row = next((row for row in rows if taken[row["repo"]] < PER_REPOSITORY), None)
            rows[:] = [] if row is None else [other for other in rows if other is not row]
            if row is not None and len(drawn) < count:
                taken[row["repo"]] += 1
                drawn.append({"id": len(drawn), **row})
    return drawn


def lint(row: Mapping[str, Any], folder: Path, target: str) -> dict[str, Any]:
    """Return a row of the sheet: the launch, how it was read, and each finding with an empty verdict."""
    git = find_git_directory(folder / str(row["repo"]).replace("/", "+", 1))
    assert git is not None
    with tempfile.TemporaryDirectory() as checkout:
        export(git, str(row["commit"]), Path(checkout))
        program = str(Path(sys.executable).with_name("attncheck"))  # not -m, which would look into the checkout
        command = [program, "lint", str(row["path"]), "--format", "json", "--target", target]
        start = time.perf_counter()
        try:
            run = subprocess.run(
                command, cwd=checkout, capture_output=True, text=True, timeout=LINT_SECONDS, check=False
            )
            report, failure = json.loads(run.stdout), ""
        except (ValueError, subprocess.TimeoutExpired) as error:
            report, failure = {}, str(error)
        seconds = time.perf_counter() - start
    jobs = [launch["job"] for launch in (report.get("lint") or {}).get("launches", [])]
    findings = [
        {
            **{key: finding[key] for key in ("severity", "code", "message", "evidence")},
            "at": [f"{place['source']}:{place['line']}" for place in finding["locations"][:3]],
            "verdict": "",
        }
        for finding in report.get("findings", [])
        if finding["severity"] != "note"
    ]
    read_as = [
        f"{job['framework']} {job['version']} {job['trainer']} · {job['model']} · "
        + " ".join(str(job["plan"][key]) for key in ("attn_implementation", "packing", "precision", "ring_size"))
        for job in jobs
    ]
    judged: dict[str, Any] = {"truth": "", "in_scope": None, "read_rightly": None, "misses": []}
    return {**row, "read_as": read_as, **judged, "seconds": round(seconds, 1), "failure": failure, "findings": findings}


def sum_up(sheet: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a judged sheet; what has no verdict yet is counted as open."""
    rows = sheet["launches"]
    inside = [row for row in rows if row["in_scope"]]
    counts = Counter(
        f"{finding['severity']}s {finding['verdict'] or 'open'}" for row in rows for finding in row["findings"]
    )
    return {
        "date": sheet["date"],
        "seed": sheet["seed"],
        "n": len(rows),
        "in scope": len(inside),
        "recognised": sum(bool(row["read_as"]) for row in inside),
        "read rightly": sum(row["read_rightly"] is True for row in inside),
        "claimed out of scope": sum(bool(row["read_as"]) for row in rows if row["in_scope"] is False),
        "not judged": sum(row["in_scope"] is None for row in rows),
        "no answer": sum(bool(row["failure"]) for row in rows),
        **dict(sorted(counts.items())),
        "misses": sum(len(row["misses"]) for row in rows),
    }


def _iter_repositories(node: Any) -> Iterator[str]:
    """Yield every "repo" in a JSON document."""
    if isinstance(node, dict):
        if isinstance(node.get("repo"), str):
            yield node["repo"]
        node = list(node.values())
    for item in node if isinstance(node, list) else ():
        yield from _iter_repositories(item)


def main() -> None:
    """Run the command that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("folder", type=Path)
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=60)
    drawing.add_argument("--sheet", type=Path, required=True)
    drawing.add_argument("--without", type=Path, action="append", default=[])
    drawing.add_argument("--target", default="h100x8")
    commands.add_parser("sum").add_argument("sheet", type=Path)
    options = parser.parse_args()
    if options.command == "sum":
        print("\n".join(f"{name}: {value}" for name, value in sum_up(json.loads(options.sheet.read_text())).items()))
        return
    left_out = {name for file in options.without for name in _iter_repositories(json.loads(file.read_text()))}
    drawn = draw(list(find_candidates(options.folder, left_out)), options.seed, options.count)
    rows = [lint(row, options.folder, options.target) for row in drawn]
    sheet = {"date": date.today().isoformat(), "seed": options.seed, "target": options.target, "launches": rows}
    options.sheet.write_text(json.dumps(sheet, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
