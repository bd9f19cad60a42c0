"""`attncheck init`: a commented policy for what is found here; every line of it is either in force or ready to be."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attncheck.core.errors import BadUsage
from attncheck.core.snapshot import Snapshot
from attncheck.gate.inputs import read_small_file
from attncheck.gate.policy import OWN, PROJECT, parse, read_text
from attncheck.lint import frameworks

MOST_FILES = 2000  # looked at in a folder, and the folders in it
MOST_NAMED = 12
DEPTH = 2
STACK = ("torch", "transformers", "flash-attn", "flash-attn-3", "flash-attn-4", "ring-flash-attn", "liger-kernel")
SKIPPED = ("node_modules", "__pycache__", "site-packages", "venv", "env", "build", "dist")
_LAUNCH = re.compile(
    r"^[^#\n]*\b(?:torchrun|deepspeed|accelerate\s+launch|llamafactory-cli|axolotl\s+train|swift\s+(?:sft|rlhf|pt)|"
    r"trl\s+(?:sft|dpo|grpo)|ray\s+job\s+submit|-m\s+(?:openrlhf|verl|torch\.distributed|axolotl|swift|llamafactory)\b)",
    re.MULTILINE,
)
_SETTINGS = re.compile(
    r"^\s*(?:model_name_or_path|base_model|attn_implementation|flash_attention|flash_attn|sample_packing|packing|"
    r"actor_rollout_ref|use_remove_padding|model_id_or_path)\s*:",
    re.MULTILINE,
)
_MODEL = re.compile(
    r"(?:--(?:model_name_or_path|pretrain|model|actor\.model_name_or_path|model\.model_name_or_path)[ =]"
    r"|\bmodel\.path=|^\s*(?:base_model|model_name_or_path|model_id_or_path)\s*:\s*)[\"']?([\w.~/-]+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Found:
    """What a policy is written for."""

    packages: tuple[str, ...]  # "torch 2.11.0"
    frameworks: tuple[str, ...]
    gpus: tuple[str, ...]
    launch: tuple[str, ...]
    models: tuple[str, ...]


def look(folder: Path, snapshot: Snapshot) -> Found:
    """Return what is in `folder` and in the environment that `snapshot` shows. Nothing in the folder is run."""
    texts = dict(_launches(folder))
    models = dict.fromkeys(name for text in texts.values() for name in _MODEL.findall(text))
    named = [name for name in models if "/" in name or (folder / name / "config.json").is_file()]
    return Found(
        tuple(f"{name} {_version(snapshot, name)}" for name in STACK if snapshot.has(name)),
        tuple(each.name for each in frameworks.load() if not each.general and snapshot.has(each.distribution)),
        tuple(device.name for device in snapshot.visible_devices()),
        tuple(texts)[:MOST_NAMED],
        tuple(named)[:MOST_NAMED],
    )


def _version(snapshot: Snapshot, name: str) -> str:
    return str(getattr(snapshot.version(name), "value", ""))


def _launches(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the files that start or configure a training, with their text: near ones first, by name."""
    for path in sorted(_files(folder), key=lambda path: (path.count(os.sep), path)):
        data = read_small_file(str(folder / path))
        text = "" if data is None else data.decode("utf-8", "replace")
        pattern = _LAUNCH if path.endswith(".sh") else _SETTINGS
        if pattern.search(text):
            yield path, text


def _files(folder: Path) -> Iterator[str]:
    seen = 0
    for here, folders, names in os.walk(folder):
        below = os.path.relpath(here, folder)
        depth = 0 if below == "." else below.count(os.sep) + 1
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in SKIPPED and depth < DEPTH)
        for name in sorted(names):
            seen += 1
            if seen > MOST_FILES:
                return
            if name.endswith((".sh", ".yaml", ".yml")):
                yield name if below == "." else os.path.join(below, name)


def text(found: Found) -> str:
    """Return the policy, which our own reader takes."""
    lines = [*_heading(found), *_checks(found), *_named(found), *_rest(found)]
    document = "\n".join(lines) + "\n"
    _check(document)
    return document


def _heading(found: Found) -> Iterator[str]:
    yield "# The policy of attncheck for this project: `attncheck gate` asks what stands here; `attncheck run -- WORDS`"
    yield "# does so, then becomes the command. `attncheck rules` lists codes, `attncheck explain CODE` prints a page."
    yield "#"
    yield f"# Found here: {_told(found.packages) or 'no torch'}; {_told(found.frameworks) or 'no framework'};"
    yield f"# {_counted(found.gpus) or 'no GPU'}."
    yield ""


def _checks(found: Found) -> Iterator[str]:
    checks = ["doctor", *(["lint"] if found.launch else []), "parity", *(["smoke"] if found.frameworks else [])]
    yield "# What is asked, always in this order: doctor and lint read; parity, determinism, smoke and bench measure."
    yield f"checks = {_array(checks)}"
    yield ""
    yield "# Exit 1 from here on: error, warning or never."
    yield 'fail-on = "error"'
    yield ""
    yield "# Seconds for all of it; what is left out for lack of time makes the gate exit with 3."
    yield "budget = 600"
    yield ""
    yield "# How many cases parity runs: quick, standard or full."
    yield 'suite = "quick"'
    yield ""


def _named(found: Found) -> Iterator[str]:
    yield "# What starts or configures the job; lint reads these, and never runs them."
    yield f"launch = {_array(found.launch)}" if found.launch else '# launch = ["run.sh", "config.yaml"]'
    yield ""
    yield "# Models whose own heads, sizes and windows are judged and measured: folders, or names in the Hub's cache."
    yield f"{'models' if found.models else '# models'} = {_array(found.models or ['meta-llama/Llama-3.1-8B'])}"
    yield ""
    yield "# cuda: without a visible GPU the gate does not pass. auto takes one where there is one."
    yield f'device = "{"cuda" if found.gpus else "auto"}"'
    yield ""


def _rest(found: Found) -> Iterator[str]:
    ring = max(2, len(found.gpus))
    yield "# What matters: auto reads it off what is installed; flash, ring, rl, all."
    yield '# profile = "auto"'
    yield ""
    yield "# Also measure context parallelism over this many ranks."
    yield f"# ring-size = {ring}"
    yield ""
    yield "# The machine and the release that the job will meet, where they are not these (doctor and lint)."
    yield f'# target = "h100x{max(8, len(found.gpus))}"'
    yield '# framework-version = "0.10.2"'
    yield ""
    yield "# Findings known already, written by `attncheck baseline`: only new ones fail."
    yield '# baseline = "attncheck-baseline.json"'
    yield ""
    yield "# What may pass, why, and until which day; afterwards it is found again."
    yield "# ignore = ["
    yield f'#   {{code = "ATN211", reason = "the GPUs are shared on Fridays", until = "{_next_year()}"}},'
    yield "# ]"
    yield ""
    yield "# [thresholds]"
    yield "# max-error = 0.8  # of the error that a correct kernel may make"
    yield "# min-efficiency = 0.5  # of a ring, as a share of flash-attn / N; needs ring-size"
    yield ""
    yield "# [plan]  # how the job trains, for smoke; by itself what lint reads in the launch"
    yield '# attn-implementation = "flash_attention_2"'
    yield '# packing = "position_ids"'


def _check(document: str) -> None:
    """Read the policy as it will be read."""
    parse(read_text(document, OWN), OWN)


def write(folder: Path, document: str) -> Path:
    """Write the policy. Raises `BadUsage` where there is one already: nothing is overwritten."""
    path = folder / OWN
    project = folder / PROJECT
    data = read_small_file(str(project))
    if data is not None and re.search(rb"^\s*\[\s*tool\s*\.\s*attncheck", data, re.MULTILINE):
        raise BadUsage(f"{PROJECT} has a table [tool.attncheck] already, which {OWN} would hide: nothing was written")
    try:
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(document)
    except FileExistsError:
        raise BadUsage(f"{OWN} is there already: nothing was written; without --write the policy is printed") from None
    except OSError as error:
        with suppress(OSError):
            if path.is_file() and path.stat().st_size < len(document):
                path.unlink()  # half of it
        raise BadUsage(f"cannot write {OWN}: {error.strerror or error}") from None
    return path


def _array(items: Iterable[str]) -> str:
    """Return a TOML array: JSON's strings are TOML's basic strings, but for what TOML escapes beside them."""
    return "[" + ", ".join(json.dumps(item, ensure_ascii=True).replace("\x7f", "\\u007f") for item in items) + "]"


def _told(items: Sequence[str]) -> str:
    return ", ".join(items)


def _counted(items: Sequence[str]) -> str:
    """Return "2 × NVIDIA H200"; a name is no more than its printable characters."""
    counts = {item: items.count(item) for item in items}
    return ", ".join(f"{count} × {''.join(filter(str.isprintable, item))}" for item, count in counts.items())


def _next_year() -> str:
    return f"{time.gmtime().tm_year + 1}-01-31"
