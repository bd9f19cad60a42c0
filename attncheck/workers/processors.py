"""The processors that this process may use, and the variables that limit a worker's threads to its share.

The number of processors is the lower of the affinity mask and the control group's quota, as joblib counts them (loky at
001deca, loky/backend/context.py, `_cpu_count_cgroup`; https://github.com/joblib/loky).

OpenMP threads spin while they wait for each other. On a busy machine one of them has usually lost its processor, and
spinning takes several times as long as the work. Passive threads sleep instead (OpenMP 5.2, 21.7, OMP_WAIT_POLICY). The
user's own settings are unchanged.
"""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",  # tokenizers
    "TORCHINDUCTOR_COMPILE_THREADS",
)
WAITING_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def count_cores() -> int:
    """Return the number of processors that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = read_quota(CONTROL_GROUPS)
    return max(1, min(allowed, math.ceil(quota))) if quota else allowed


def read_quota(folder: Path) -> float:
    """Return the number of processors that the control group at `folder` may use, 0 without a limit."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        limit, period = (folder / "cpu.max").read_text().split()
        return 0.0 if limit == "max" else int(limit) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        limit, period = ((folder / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return max(0.0, int(limit) / int(period))  # -1: no limit
    return 0.0


def share_cores(workers: int, environ: Mapping[str, str], spare: int = 0) -> int:
    """Return the number of threads per worker: the user's OMP_NUM_THREADS, otherwise its share of the cores.

    `spare` cores are left free.
    """
    setting = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list is for nested regions
    if setting.isdecimal() and int(setting):
        return int(setting)
    return max(1, (count_cores() - spare) // workers)


def thread_environment(threads: int, spins: bool, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that limit a worker's threads; they sleep while they wait unless it `spins`."""
    variables = {name: str(threads) for name in THREAD_VARIABLES if name not in environ}
    if not spins and not any(name in environ for name in WAITING_VARIABLES):
        variables["OMP_WAIT_POLICY"] = "PASSIVE"
    return variables
