"""Determines from the words in a setting's name whether it also writes, sends, deletes or loads something.

A name is split at `_`, `-`, `.`, at capitals, and before a final "dir" or "path" ("logdir"). The words of its last part
count. For a bare "dir", "path" or "key" (`hydra.run.dir`), the enclosing tables count too. In this order:

- `remote_code`: "remote" and "code" (`trust_remote_code`);
- `secret`: a secret according to `core.io.secrets` (`hub_token`, `logger.wandb.key`; not `pad_token`, `prompt_key`);
- `push`: a hub, an upload, another machine's store (`push_to_hub`, `hub_model_id`, `default_hdfs_dir`);
- `resume`: "resume", or a state to load, restore or start from (`load_checkpoint_path`, `init_from`);
- `checkpoint`: weights that fit only the user's model: an adapter with a path (`lora_model_dir`, `adapters`), or with a
  file of weights (`pretrain_mm_mlp_adapter projector.bin`);
- `overwrite`: "overwrite", or a verb of deleting with only a job's own output (`clean`, `force`,
  `delete_old_checkpoints`; not `remove_unused_columns`, and not a cache that is refilled: `overwrite_cache`);
- `place`: a dir, path or file with a word of writing (`output_dir`, `log_file`), such a word alone (`output`,
  `save_to`) or with a path as its value (`csv_out ./x`); a folder whose name has no word for reading (`exp_dir`).
  Inputs are kept: `input_dir`, `train_file`, `model_path`, `data_dir`;
- `tracker`: the name of a tracker or messenger, or a setting that selects one (`report_to`, `log_with`,
  `wandb_project`).

A name that begins with "no" or "disable" switches something off and has no effect. A number, a bool or a choice, as in
`save_steps`, `save_safetensors`, `output_router_logits`, is not a place. One-letter options and positional arguments
have no words and are not judged.
"""

import re
from functools import lru_cache
from typing import Literal

from attncheck.core.io.secrets.names import rate_name

Effect = Literal["remote_code", "secret", "push", "resume", "checkpoint", "overwrite", "place", "tracker", ""]
_WORDS = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")
_GLUED = re.compile(r"(log|out|output|save|work|run|ckpt|cache|data|model|train|input|base)(dir|path|file|to)")
_SCALAR = re.compile(r"(?i)true|false|yes|no|none|null|[-+]?[\d.]+(e[-+]?\d+)?")
_WEIGHTS = re.compile(r"\.(?:bin|pt|pth|ckpt|safetensors)$")
_PATH_LIKE = re.compile(r"[/.$~\\]")
SWITCH_KINDS = ("bool", "bool?", "int", "float")  # types that hold no text


def _list_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SWITCHED_OFF = _list_words("no not non disable disabled without skip ignore dont")
FOLDERS = _list_words("dir dirs directory directories folder folders")
NOUNS = FOLDERS | _list_words("path paths file files filename filenames location root json jsonl csv")
BARE = NOUNS | {"key", "name", "enable", "enabled", "to"}  # words that mean nothing without their enclosing table
# Words of writing that make a "dir" or "path" a place, with any other words.
WRITES = _list_words(
    "output outputs out save saves saved dump dumps export exports log logs logging checkpoint checkpoints ckpt ckpts "
    "result results prediction predictions workdir tmp temp scratch offload cache caches profile profiler profiling "
    "trace traces timeline tensorboard tb record write backup plot plots artifact artifacts dest destination "
    "merged trained finetuned final new"
)
# Words of writing that count only if no word of reading is next to them.
MAY_WRITE = _list_words(
    "local run runs exp work working sweep target store storage metric metrics report state pid lock history "
    "stats summary"
)
READS = _list_words(
    "data dataset datasets corpus input inputs model models tokenizer vocab train training eval evaluation test val "
    "valid validation dev config configs conf cfg image images media audio video template prompt prompts reward "
    "teacher ref reference pretrained base source src script code package lib plugin raw text tokenized processed "
    "weights repo replay tool function"
)
OUTPUTS = _list_words("output outputs out outfile outdir workdir workspace dump ckpt dst dest destination saveto")
WRITTEN = _list_words("save saved export log logs results result record write")  # a place if their value is a path
FILLERS = _list_words("to in at as model models final best name base merged adapter metrics target new prefix")
PUSHES = _list_words("push pushes hub upload uploads publish hdfs s3 gcs")
LOADS = _list_words("load loads loading restore restored reload init initial from continue restart")
BEGINNINGS = _list_words("load restore reload init continue restart start warm")
SAVED = _list_words("checkpoint checkpoints ckpt ckpts")
OLD_WEIGHTS = SAVED | _list_words("last latest best pretrained start")
ADAPTERS = _list_words("adapter adapters lora loras peft")
FILES_OF_ADAPTERS = NOUNS | SAVED | {"adapters", "loras", "weights", "model", "id"}
DELETES = _list_words(
    "clobber clean clear wipe purge erase delete del remove rm rmtree reset force fresh recreate exist"
)
DELETED = (
    (NOUNS | SAVED | OUTPUTS)
    | _list_words("old existing previous prev run runs log logs results saved exp local")
    | _list_words("all first before after load start up on ok")
)
TRACKERS = _list_words(
    "wandb swanlab comet mlflow mlruns neptune clearml dvclive dvc aim trackio otel opentelemetry sentry telemetry "
    "webhook lark feishu dingtalk slack discord telegram smtp email posthog weave langfuse langsmith tensorboard "
    "visdom tracker trackers tracking logger loggers notify notification notifications prometheus grafana statsd "
    "datadog"
)
TRACKING_PHRASES = ({"report", "to"}, {"log", "with"}, {"trace", "backend"})


@lru_cache(4096)
def find_effect(name: str, kind: str = "", value: str = "") -> Effect:
    """Return a setting's effect besides computing, "" for none; `kind` is the name of its type, if known."""
    parts = [split_words(part) for part in name.strip("-+~").split(".")]
    leaf, whole = set(parts[-1]), {word for part in parts for word in part}
    is_text = kind not in SWITCH_KINDS and not _SCALAR.fullmatch(value)
    is_number = kind in ("int", "float") or re.fullmatch(r"[-\d.]+", value) is not None
    if not leaf or parts[-1][0] in SWITCHED_OFF:
        return ""
    if {"remote", "code"} <= leaf:
        return "remote_code"
    if is_text and rate_name(name) in ("strong", "likely"):
        return "secret"
    if (leaf & PUSHES and not is_number) or {"hf", "repo"} <= leaf:
        return "push"
    if _is_resume(leaf, whole):
        return "resume"
    if is_text and _is_adapter(leaf, value):
        return "checkpoint"
    if ("overwrite" in leaf and not leaf & {"cache", "cached"}) or (leaf & DELETES and leaf <= DELETES | DELETED):
        return "overwrite"
    if is_text and _is_place(leaf, whole, value):
        return "place"
    if (leaf if is_number else whole) & TRACKERS or any(phrase <= whole for phrase in TRACKING_PHRASES):
        return "tracker"
    return "checkpoint" if is_text and leaf & SAVED and leaf <= OLD_WEIGHTS | {"model", "base"} else ""


def split_words(part: str) -> list[str]:
    """Return the words of one part of a dotted name."""
    words: list[str] = []
    for word in _WORDS.findall(part):
        glued = _GLUED.fullmatch(word.lower())
        words += glued.groups() if glued else (word.lower(),)
    return words


def _is_resume(leaf: set[str], whole: set[str]) -> bool:
    """Return whether a setting makes a job continue from another one's output."""
    if "download" in leaf or "cache" in leaf:
        return False
    begins = bool(leaf & BEGINNINGS) and (leaf <= BEGINNINGS | NOUNS | {"from"}) and leaf != {"start"}
    return "resume" in whole or begins or bool(whole & SAVED and leaf & LOADS)


def _is_adapter(leaf: set[str], value: str) -> bool:
    """Return whether a setting names an adapter's weights."""
    if leaf & (OUTPUTS | {"init", "save"}):
        return False
    return bool(
        (leaf & ADAPTERS and leaf & FILES_OF_ADAPTERS)
        or (leaf <= ADAPTERS and _PATH_LIKE.search(value))
        or (leaf & (ADAPTERS | {"pretrain"}) and _WEIGHTS.search(value))
    )


def _is_place(leaf: set[str], whole: set[str], value: str) -> bool:
    """Return whether a setting names a place to which something is written."""
    words = whole if leaf <= BARE else leaf
    is_path = bool(_PATH_LIKE.search(value))
    if leaf & NOUNS and words & WRITES:
        return True
    if leaf & NOUNS and not words & READS and (leaf & FOLDERS or words & MAY_WRITE):
        return True
    if leaf <= OUTPUTS | WRITTEN | FILLERS and leaf & (OUTPUTS | WRITTEN):
        return bool(leaf & OUTPUTS) or "to" in leaf or is_path
    return is_path and bool(leaf & (OUTPUTS - SAVED) or (leaf & WRITTEN and not leaf & READS))
