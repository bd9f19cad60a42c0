"""The rank of this process in an external launcher's group (torchrun, srun): rank, world size and master address."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from attncheck.core.io.errors import BadUsage

PORT_RANGE = 20000  # Slurm job numbers are mapped into this range above port 10000, as users do by hand


@dataclass(frozen=True)
class RankEnv:
    """One rank of an external launcher's group; `environment` is what torch.distributed's env:// reads."""

    rank: int
    world_size: int
    environment: dict[str, str]


def read_rank_env(environ: Mapping[str, str]) -> RankEnv | None:
    """Return our rank, None if no launcher started us. Raises `BadUsage` if only some variables are set.

    torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. srun sets SLURM_PROCID, SLURM_NTASKS,
    SLURM_LOCALID and the list of nodes; the first node is used as the master address. SLURM_STEP_NUM_TASKS
    distinguishes srun from a batch script, which runs one process for any size of the job.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        required = ("MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in required if name not in environ]
        if missing:
            raise BadUsage(f"RANK is set but not {' and '.join(missing)}: unset it, or start with torchrun or srun")
        environment = {name: environ[name] for name in ("RANK", "WORLD_SIZE", *required)}
        return _make_rank_env(environment, environ.get("LOCAL_RANK"))
    if "SLURM_PROCID" in environ and environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        nodes = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", "localhost"))
        port = 10000 + int(re.sub(r"\D", "", environ.get("SLURM_JOB_ID", "0")) or 0) % PORT_RANGE
        environment = {
            "RANK": environ["SLURM_PROCID"],
            "WORLD_SIZE": environ["SLURM_STEP_NUM_TASKS"],
            "MASTER_ADDR": environ.get("MASTER_ADDR", first_node(nodes)),
            "MASTER_PORT": environ.get("MASTER_PORT", str(port)),
        }
        return _make_rank_env(environment, environ.get("SLURM_LOCALID"))
    return None


def _make_rank_env(environment: dict[str, str], local_rank: str | None) -> RankEnv:
    try:
        rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        return RankEnv(rank, world_size, {**environment, "LOCAL_RANK": str(int(local_rank or 0))})
    except ValueError:
        raise BadUsage("the launcher's rank variables are not numbers: RANK, WORLD_SIZE, LOCAL_RANK") from None


def first_node(nodes: str) -> str:
    """Return the first host of Slurm's list: "gpu[03-06,9],login" is gpu03."""
    match = re.match(r"([^,\[]+)(?:\[(\d+))?([^,\[\]]*)", nodes)
    if not match:
        return "localhost"
    return match[1] + (match[2] or "") + ("" if match[2] else match[3])
