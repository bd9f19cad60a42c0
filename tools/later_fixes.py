# ruff: noqa: E501
"""Writes attncheck/doctor/knowledge/later_fixes.json: fixes of the frameworks, with the releases that have the fault.

    python -m tools.later_fixes FOLDER [PACKAGE …]   (FOLDER/PACKAGE is a git directory of each package, with its tags)

A commit counts if its title names a fix of training (attention, packing, loss, precision, parallelism, kernels). `since`
is the first release whose files have the code that it replaces, `until` the first one that no longer has it. Trainers
come from the changed files' names, needs from the title.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

TARGET = Path(__file__).parents[1] / "attncheck" / "doctor" / "knowledge" / "later_fixes.json"
SINCE = "2025-06-01"
# Distribution -> the folder of its code.
PACKAGES = {
    "trl": "trl/", "accelerate": "src/accelerate/", "peft": "src/peft/", "axolotl": "src/axolotl/",
    "ms-swift": "swift/", "llamafactory": "src/llamafactory/", "verl": "verl/", "openrlhf": "openrlhf/",
    "liger-kernel": "src/liger_kernel/", "deepspeed": "deepspeed/",
}  # fmt: skip
FIX = re.compile(
    r"\bfix|\bbug|wrong|incorrect|silent|crash|\bcorrect\b|\bhonou?r\b|preserve|when using|^\W*support .* and ",
    re.IGNORECASE,
)
TOPIC = re.compile(
    r"attention|attn|pack|padding|mask|loss|grad|precision|bf16|fp16|fp32|dtype|parallel|ulysses|\b[sctep]p\b|fsdp|zero|"
    r"liger|kernel|log_?prob|logp|label|position|rope|checkpointing|accumulat|normali[sz]|flash|sdpa|vlm|trunca|entropy|"
    r"\bkl\b|ratio|chunk|compile|ddp|token_type|pixel|image|lora|peft|deepspeed|sampling|reward|advantage|rollout|\beos\b|"
    r"template|wrap|moe|router|fp8|vllm|sglang|dpo|grpo|sft|gkd|kto|ppo|rloo|collator|batch|optimizer|tied",
    re.IGNORECASE,
)
OTHER = re.compile(
    r"\bdocs?\b|\btests?\b|\bci\b|typo|readme|\bnpu\b|ascend|\bxpu\b|rocm|\bamd\b|studio|notebook|example|gaudi|\bhpu\b|"
    r"\bmps\b|\binfer|webui|download|\brevert|\brelease\b|bump|gguf|wandb|swanlab|mlflow|trackio|deploy|docker|license|"
    r"\bimport|state.?dict|\bckpt\b|checkpoint (?:path|save|saving|load)|\bsav(?:e|ing)\b|resum|\bexport|serializ|\boom\b|memory leak|\bperf\b|error message|"
    r"type hint|docstring|comment|mindspeed|tensorboard|dashboard|profil|logging|log_|\beval",
    re.IGNORECASE,
)
RELEASE = re.compile(r"v?\d+\.\d+\.\d+(\.post\d+)?")
TRAINER = re.compile(
    r"(?:^|[/_])(sft|dpo|grpo|kto|rloo|reward|gkd|gold|ppo|orpo|cpo|online_dpo|nash_md|xpo|prm|bco|rm)_?"
    r"(?:trainer|config|strategy)?(?:[/_.]|$)"
)
IN_TITLE = ("sft", "dpo", "grpo", "kto", "rloo", "gkd", "gold", "ppo", "orpo", "cpo", "bco")
NEEDS = {
    "liger": r"liger", "fsdp": r"fsdp", "deepspeed": r"deepspeed|zero-?[123]|\bzero\b", "vllm": r"vllm",
    "sglang": r"sglang|\bsgl\b", "megatron": r"megatron|mcore", "tensor_parallel": r"\btp\b|tensor.parallel",
    "sequence_parallel": r"\b[sc]p\b|ulysses|(?:sequence|context).parallel|\bring\b", "pipeline_parallel": r"\bpp\b|pipeline",
    "expert_parallel": r"\bep\b|expert.parallel|deepep", "peft": r"lora|peft|adapter|\bdora\b",
    "multimodal": r"vlm|multi-?modal|image|vision|pixel|video|audio|omni|[-_ ]vl\b|\bmm_|mrope|\bvit\b",
    "packing": r"pack(?!age)|padding.?free|flatten|varlen|remove_padding", "moe": r"\bmoe\b|router|aux.?loss|experts?\b",
    "compile": r"torch\.compile|compile", "checkpointing": r"gradient.checkpointing", "fp8": r"\bfp8\b",
    "quantised": r"qlora|\bbnb\b|bitsandbytes|4-?bit|8-?bit|quant", "multi_turn": r"multi.?turn|tool|agent",
    "embedding": r"embedding|reranker|seq_cls|classif", "stream": r"stream",
}  # fmt: skip
FAMILY = re.compile(
    r"(?<![a-z])(?:qwen[ -]?\d(?:[._]\d)?|gemma[ -]?\d?n?|llama[ -]?\d?|gpt[-_ ]?oss|deepseek[-_ ]?(?:v\d|r1|ocr|moe)|glm[- ]?\d?|mistral|ministral|phi[- ]?\d|"
    r"internvl|minicpm|kimi|olmo|granite|mamba|lfm2|nemotron|pixtral|llava|smolvlm|paligemma|idefics|ovis|hunyuan|ernie|"
    r"mllama|ling|step\d|whisper|bert)(?![a-z])", re.IGNORECASE)  # fmt: skip
OTHER_TUNER = re.compile(r"peft/tuners/(?!lora/|tuners_utils)")  # adapters that few launches use
MAX_FILES = 8
MAX_PATCHED = 6  # newest releases that may have the fix although they lack the commit: a cherry-pick


def git(folder: Path, *arguments: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="replace")
    return done.stdout


class FileReader:
    """Reads files at tags through one process of git."""

    def __init__(self, folder: Path) -> None:
        """Start git."""
        command = ["git", "-C", str(folder), "cat-file", "--batch"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.read = cache(self._read)

    def _read(self, tag: str, path: str) -> str:
        """Return a file's lines without indentation and blank lines; "" if there is none."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{tag}:{path}\n".encode())
        self.process.stdin.flush()
        head = self.process.stdout.readline().split()
        if head[-1] == b"missing":
            return ""
        text = self.process.stdout.read(int(head[2]) + 1).decode(errors="replace")
        return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def list_fixes(folder: Path, code: str) -> Iterator[dict[str, Any]]:
    """Yield the fixes of one package, newest first."""
    tags = sorted((tag for tag in git(folder, "tag").split() if RELEASE.fullmatch(tag)), key=Version)
    reader = FileReader(folder)
    log = git(folder, "log", "--first-parent", f"--since={SINCE}", "--format=%H%x09%s")
    for line in log.splitlines():
        commit, _, title = line.partition("\t")
        number = re.search(r"#(\d+)\)?$", title)
        if not number or not FIX.search(title) or not TOPIC.search(title) or OTHER.search(title):
            continue
        hunks = list(read_hunks(git(folder, "show", "--format=", "-U2", commit, "--", f"{code}*.py")))
        paths = list(dict.fromkeys(path for path, _ in hunks))
        if not 0 < len(paths) <= MAX_FILES or all(OTHER_TUNER.search(path) for path in paths):
            continue
        containing = set(git(folder, "tag", "--contains", commit).split())
        before = [tag for tag in tags if tag not in containing]
        since, last = find_range(reader, before, hunks)
        if not since:
            continue
        until = next(iter(tags[tags.index(last) + 1 :]), "")
        name = re.sub(r"\s*\(#\d+\)$", "", title)
        yield {
            "number": int(number[1]), "title": name, "since": since.lstrip("v"), "until": until.lstrip("v"),
            "trainers": sorted(find_trainers(name, paths)), "needs": sorted(find_needs(name, paths)),
        }  # fmt: skip


def read_hunks(diff: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the path and the lines before the change of each hunk that changes existing code."""
    path = ""
    lines: list[str] | None = None
    for line in [*diff.splitlines(), "@@"]:
        if line.startswith("--- "):
            path = line[6:] if line.startswith("--- a/") else ""
        elif line.startswith(("@@", "diff ")):
            if path and lines and len(lines) > 1:
                yield path, tuple(lines)
            lines = [] if line.startswith("@@") else None
        elif lines is not None and line[:1] in (" ", "-") and line[1:].strip():
            lines.append(line[1:].strip())


def find_range(reader: FileReader, tags: list[str], hunks: list[tuple[str, tuple[str, ...]]]) -> tuple[str, str]:
    """Return the first and the last of the newest consecutive tags that have most of the code; "" if none has."""
    first = last = ""
    for count, tag in enumerate(reversed(tags)):
        found = sum("\n".join(lines) in reader.read(tag, path) for path, lines in hunks)
        if found * 2 >= len(hunks) and found:
            first, last = tag, last or tag
        elif last or count > MAX_PATCHED:
            break
    return first, last


def find_trainers(title: str, paths: list[str]) -> set[str]:
    """Return the trainers that the change concerns; empty if it may concern all."""
    named = {name for name in IN_TITLE if re.search(rf"(?<![a-z]){name}(?![a-z])", title, re.IGNORECASE)}
    in_paths = [{match[1] for match in TRAINER.finditer(path.lower())} for path in paths]
    return named or (set().union(*in_paths) if all(in_paths) else set())


def find_needs(title: str, paths: list[str]) -> set[str]:
    """Return the features without which a launch does not run the changed code."""
    needs = {need for need, pattern in NEEDS.items() if re.search(pattern, title, re.IGNORECASE)}
    for need in ("megatron", "vllm", "sglang", "sequence_parallel"):
        if all(need in path or (need == "megatron" and "mcore" in path) for path in paths):
            needs.add(need)
    families = {re.sub(r"[ _.-]", "", match[0].lower()) for match in FAMILY.finditer(title)}
    return needs | ({"model:" + "|".join(sorted(families))} if families else set())


def main() -> None:
    """Write the table from the git directories below a folder."""
    root, names = Path(sys.argv[1]), sys.argv[2:] or list(PACKAGES)
    table = json.loads(TARGET.read_text(encoding="utf-8")) if sys.argv[2:] else {}
    table |= {name: list(list_fixes(root / name, PACKAGES[name])) for name in names}
    rows = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in fixes) + "\n]"
        for name, fixes in table.items()
    ]
    TARGET.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
