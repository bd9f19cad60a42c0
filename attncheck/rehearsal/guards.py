"""The environment of a rehearsed launch: variables that keep it offline, silent and in its folder.

They override the launch's own. Each name was read in its package: huggingface_hub constants.py and transformers 5.17.0
utils/hub.py and integrations/integration_utils.py; wandb 0.31.0, swanlab 0.10.3, mlflow-skinny 3.17.2, comet_ml 3.58.8,
clearml 2.1.12, neptune 1.14.0, opentelemetry-sdk 1.45.2, trackio 0.43.0, modelscope 1.40.2.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from attncheck.core.launch import Launch, Word
from attncheck.workers.process import CHILD_ENVIRONMENT

QUIET: Mapping[str, str] = {
    **CHILD_ENVIRONMENT,
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_TRUST_REMOTE_CODE": "0",
    "WANDB_MODE": "disabled",
    "SWANLAB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "",
    "COMET_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",  # which sends nothing
    "OTEL_SDK_DISABLED": "true",
    "AXOLOTL_DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# Where packages write their files; each is a folder of the rehearsal.
CACHES = (
    *("XDG_CACHE_HOME", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_ASSETS_CACHE", "MODELSCOPE_CACHE", "WANDB_DIR"),
    *("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "SWANLAB_SAVE_DIR", "SWANLAB_LOG_DIR", "TRACKIO_DIR"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "MPLCONFIGDIR"),
    *("VLLM_CACHE_ROOT", "RAY_TMPDIR", "COMET_OFFLINE_DIRECTORY", "CLEARML_CACHE_DIR"),
)
# Unchanged: downloaded models, tokenizers and data sets are read from there.
STORES = {"HF_HOME": "huggingface", "TORCH_HOME": "torch"}
TEMPORARY = ("TMPDIR", "TMP", "TEMP")
# Instructions to the watcher, and proxies that close the network without a network namespace.
OURS = tuple(
    f"ATTNCHECK_{name}"
    for name in (
        *("WATCH", "FOLDER", "SUPERVISOR", "REMOTE_CODE", "EMULATED", "DRIVER", "DOCUMENTS", "STEPS", "MAX_WEIGHTS"),
        *("MODEL", "ROWS", "WITHOUT_GPU", "PROJECT"),
        *("NO_CACHE", "WITHOUT_CUDA", "VERL_DEVICE", "OVERRIDES"),
    )
)
PROXIES = tuple(case(f"{kind}_proxy") for kind in ("http", "https", "all", "no") for case in (str.lower, str.upper))
GUARDED = frozenset((*QUIET, *CACHES, *STORES, *TEMPORARY, *OURS, *PROXIES, "TORCH_EXTENSIONS_DIR", "HF_HUB_CACHE")) | {
    "HUGGINGFACE_HUB_CACHE"
}
ASSIGNMENT = re.compile(rf"(?<![\w.])({'|'.join(sorted(GUARDED))})=[^\s,]*")  # for `env`, mpirun's -x, srun's --export


def make_environment(job: str, environ: Mapping[str, str], trusts_remote_code: bool = False) -> dict[str, str]:
    """Return the variables of every process of a launch; `environ` is the user's own.

    `job` is the folder that it may write to.
    """
    caches = {name: os.path.join(job, "cache", name.lower()) for name in CACHES}
    user_cache = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    stores = {name: environ.get(name) or os.path.join(user_cache, folder) for name, folder in STORES.items()}
    hub = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or f"{stores['HF_HOME']}/hub"
    temporary = dict.fromkeys(TEMPORARY, os.path.join(job, "tmp"))
    allowed = {"ATTNCHECK_REMOTE_CODE": "1"} if trusts_remote_code else {}
    return {**QUIET, **caches, **stores, "HF_HUB_CACHE": hub, **temporary, **allowed}


def drop_guarded(launch: Launch) -> Launch:
    """Return a launch that does not set the guarded variables, neither by export nor in front of its command."""
    launchers = len(launch.launcher_words)
    whole = tuple(_keep_guards(word) if place < launchers else word for place, word in enumerate(launch.whole))
    exports = tuple(assignment for assignment in launch.exports if assignment.name not in GUARDED)
    environ = {name: value for name, value in launch.environ.items() if name not in GUARDED}
    variables = tuple(setting for setting in launch.variables if setting.name not in GUARDED)
    return replace(launch, whole=whole, exports=exports, environ=environ, variables=variables)


def _keep_guards(word: Word) -> Word:
    """Return a launcher's word with the guarded variables unchanged: `env HF_HOME=x` becomes HF_HOME="$HF_HOME"."""
    text = word.shell or word.text
    kept = ASSIGNMENT.sub(lambda match: f'{match[1]}="${match[1]}"', text)
    return word if kept == text else replace(word, shell=kept)
