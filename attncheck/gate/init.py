"""`attncheck init`: a commented policy for a project folder; every line is active or can be uncommented."""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import make_write_error
from attncheck.core.io.toml import parse_toml
from attncheck.core.io.visible import show_on_one_line
from attncheck.core.snapshot import Known, Snapshot
from attncheck.doctor.probes.model import read_model
from attncheck.gate.inputs import read_small_file
from attncheck.gate.policy import POLICY_FILE, PYPROJECT_FILE, parse_policy
from attncheck.lint import frameworks

MAX_FILES = 2000  # listed in a folder and its subfolders
MAX_LISTED = 12
MAX_DEPTH = 2
STACK_DISTRIBUTIONS = (
    "torch",
    "transformers",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "ring-flash-attn",
    "liger-kernel",
)
SKIPPED_FOLDERS = ("node_modules", "__pycache__", "site-packages", "venv", "env", "build", "dist")
_LAUNCH_COMMAND = re.compile(
    r"^[^#\n]*\b(?:torchrun|deepspeed|accelerate\s+launch|llamafactory-cli|axolotl\s+train|swift\s+(?:sft|rlhf|pt)|"
    r"trl\s+(?:sft|dpo|grpo)|ray\s+job\s+submit|-m\s+(?:openrlhf|verl|torch\.distributed|axolotl|swift|llamafactory)\b)",
    re.MULTILINE,
)
_TRAINING_SETTING = re.compile(
    r"^\s*(?:model_name_or_path|base_model|attn_implementation|flash_attention|flash_attn|sample_packing|packing|"
    r"actor_rollout_ref|use_remove_padding|model_id_or_path)\s*:",
    re.MULTILINE,
)
_MODEL_NAME = re.compile(
    r"(?:--(?:model_name_or_path|pretrain|model|actor\.model_name_or_path|model\.model_name_or_path)[ =]"
    r"|\bmodel\.path=|^\s*(?:base_model|model_name_or_path|model_id_or_path)\s*:\s*)[\"']?([\w.~/-]+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Project:
    """The project that a policy is written for: its packages, GPUs, launches and models."""

    packages: tuple[str, ...]  # "torch 2.11.0"
    frameworks: tuple[str, ...]
    gpus: tuple[str, ...]
    launch: tuple[str, ...]
    models: tuple[str, ...]  # models that can be read here
    uncached_models: tuple[str, ...] = ()


def inspect_project(folder: Path, snapshot: Snapshot) -> Project:
    """Return the project in `folder`, using the environment in `snapshot`. Nothing in the folder is run."""
    text_by_path = dict(_iter_launch_files(folder))
    models = dict.fromkeys(name for text in text_by_path.values() for name in _MODEL_NAME.findall(text))
    local_models = [name for name in models if (folder / name / "config.json").is_file()]
    hub_models = [name for name in models if "/" in name and name not in local_models]
    cached_models = [name for name in hub_models if isinstance(read_model(name), Known)]
    return Project(
        tuple(f"{name} {_installed_version(snapshot, name)}" for name in STACK_DISTRIBUTIONS if snapshot.has(name)),
        tuple(
            framework.name
            for framework in frameworks.load()
            if not framework.general and snapshot.has(framework.distribution)
        ),
        tuple(device.name for device in snapshot.visible_devices()),
        tuple(text_by_path)[:MAX_LISTED],
        (*local_models, *cached_models)[:MAX_LISTED],
        tuple(name for name in hub_models if name not in cached_models)[:MAX_LISTED],
    )


def _installed_version(snapshot: Snapshot, name: str) -> str:
    return str(getattr(snapshot.version(name), "value", ""))


def _iter_launch_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield path and text of the files that start or configure a training, by depth and then by name."""
    for path in sorted(_iter_candidate_files(folder), key=lambda path: (path.count(os.sep), path)):
        data = read_small_file(str(folder / path))
        text = "" if data is None else data.decode("utf-8", "replace")
        pattern = _LAUNCH_COMMAND if path.endswith(".sh") else _TRAINING_SETTING
        if pattern.search(text):
            yield path, text


def _iter_candidate_files(folder: Path) -> Iterator[str]:
    count = 0
    for current, folders, names in os.walk(folder):
        relative = os.path.relpath(current, folder)
        depth = 0 if relative == "." else relative.count(os.sep) + 1
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f not in SKIPPED_FOLDERS and depth < MAX_DEPTH
        )
        for name in sorted(names):
            count += 1
            if count > MAX_FILES:
                return
            if name.endswith((".sh", ".yaml", ".yml")):
                yield name if relative == "." else os.path.join(relative, name)


def render_policy(project: Project) -> str:
    """Return the text of a policy for the project. Raises `BadUsage` if `load_policy` would not accept it."""
    texts = (_format_heading(project), _format_checks(project), _format_inputs(project), _format_optional(project))
    document = "\n".join(texts)
    parse_policy(parse_toml(document, POLICY_FILE), POLICY_FILE)
    return document


def _format_heading(project: Project) -> str:
    packages, frameworks = (show_on_one_line(", ".join(names)) for names in (project.packages, project.frameworks))
    return f"""\
# The attncheck policy of this project. `attncheck gate` runs these checks; `attncheck run -- COMMAND`
# runs them, then starts the command. `attncheck rules` lists codes, `attncheck explain CODE` prints a page.
#
# Found here: {packages or "no torch"}; {frameworks or "no framework"};
# {_format_counts(project.gpus) or "no GPU"}.
"""


def _format_checks(project: Project) -> str:
    checks = ["doctor", *(["lint"] if project.launch else []), "parity", *(["smoke"] if project.frameworks else [])]
    return f"""\
# The checks, always run in this order. doctor and lint only read; parity, smoke, rehearsal and others measure.
checks = {_toml_array(checks)}

# The least severe finding that fails the gate: error, warning or never.
fail-on = "error"

# Seconds for all checks. If time runs out, the gate exits with 3.
budget = 600

# How many cases parity runs: quick, standard or full.
suite = "quick"
"""


def _format_inputs(project: Project) -> str:
    models = [f"models = {_toml_array(project.models)}"] if project.models else []
    for name in project.uncached_models:
        is_path = name.startswith((".", "/", "~"))
        remedy = "not found" if is_path else f"not cached: hf download {name} config.json"
        models.append(f"# models = {_toml_array([name])}  # {remedy}")
    lines = "\n".join(models or ['# models = ["meta-llama/Llama-3.1-8B"]'])
    launch = f"launch = {_toml_array(project.launch)}" if project.launch else '# launch = ["run.sh", "config.yaml"]'
    return f"""\
# The files that start or configure the job. lint reads them; rehearsal runs them, after `attncheck trust`.
{launch}

# Models to judge and measure with their real heads, sizes and windows: folders, or names in the Hub's cache.
{lines}

# cuda: the gate needs a visible GPU. auto: a GPU is used if there is one.
device = "{"cuda" if project.gpus else "auto"}"
"""


def _format_optional(project: Project) -> str:
    return f"""\
# The kind of job: auto (from the installed packages), flash, ring, rl or all.
# profile = "auto"

# Also measure context parallelism over this many ranks.
# ring-size = {max(2, len(project.gpus))}

# The machine and framework release of the job, if they differ from these (doctor and lint).
# target = "h100x{max(8, len(project.gpus))}"
# framework-version = "0.10.2"

# Known findings, written by `attncheck baseline`: only new ones fail.
# baseline = "attncheck-baseline.json"

# Findings to allow, each with a reason and a last day; after that day they count again.
# ignore = [
#   {{code = "ATN211", reason = "the GPUs are shared on Fridays", until = "{time.gmtime().tm_year + 1}-01-31"}},
# ]

# [thresholds]
# max-error = 0.8  # as a share of the error budget
# min-efficiency = 0.5  # of a ring, as a share of flash-attn / N; needs ring-size

# [plan]  # how the job trains, for smoke; by default lint reads it from the launch
# attn-implementation = "flash_attention_2"
# packing = "position_ids"
"""


def write_policy(folder: Path, document: str) -> Path:
    """Write the policy. Raises `BadUsage` if one already exists: nothing is overwritten."""
    path = folder / POLICY_FILE
    pyproject = folder / PYPROJECT_FILE
    data = read_small_file(str(pyproject))
    if data is not None and re.search(rb"^\s*\[\s*tool\s*\.\s*attncheck", data, re.MULTILINE):
        table = f"{PYPROJECT_FILE} already has a table [tool.attncheck]"
        raise BadUsage(f"{table}, which {POLICY_FILE} would hide: nothing was written")
    try:
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(document)
    except FileExistsError:
        raise BadUsage(
            f"{POLICY_FILE} already exists, so nothing was written; without --write the policy is printed"
        ) from None
    except OSError as error:
        with suppress(OSError):
            if path.is_file() and path.stat().st_size < len(document):
                path.unlink()  # the file is incomplete
        raise make_write_error(POLICY_FILE, error) from None
    return path


def _toml_array(items: Iterable[str]) -> str:
    """Return a TOML array of strings; JSON's syntax is the same, except that it does not escape DEL."""
    return "[" + ", ".join(json.dumps(item, ensure_ascii=True).replace("\x7f", "\\u007f") for item in items) + "]"


def _format_counts(items: Sequence[str]) -> str:
    """Return names with their counts, without unprintable characters: "2 × NVIDIA H200"."""
    counts = {item: items.count(item) for item in items}
    return ", ".join(f"{count} × {''.join(filter(str.isprintable, item))}" for item, count in counts.items())
