"""/dev/shm is too small for several GPUs.

What it checks: the size of /dev/shm, against 512 MiB, if more than one GPU is visible. Docker's default is 64 MiB.

Why it matters: NCCL keeps buffers there for ranks that cannot reach each other directly, and data loaders pass batches
through it. The job stops with "Error while creating shared memory segment", "unable to open shared memory object", or a
bus error.

What to do: start the container with more shared memory, or with the host's.

Source: NVIDIA NCCL User Guide, "Troubleshooting", "Shared Memory"; Docker documentation, `--shm-size`;
torch.utils.data documentation ("Multi-process data loading" and shared memory).
"""

from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot

BYTES_PER_MIB = 1 << 20
MIN_BYTES = 512 * BYTES_PER_MIB


def check(snapshot: Snapshot) -> Problems:
    size = snapshot.host.shm_bytes
    if not isinstance(size, Known) or size.value >= MIN_BYTES:
        return
    devices = gpus.visible_gpus(snapshot)
    if len(devices) < 2:
        return
    yield Problem(
        message=f"/dev/shm has {size.value // BYTES_PER_MIB} MiB for {len(devices)} GPUs",
        subject="/dev/shm",
        evidence=(f"/dev/shm: {size.value // BYTES_PER_MIB} MiB", f"{len(devices)} visible GPUs"),
        fixes=(
            Fix("start the container with more shared memory", "manual", "docker run --shm-size=16g …"),
            Fix("or with the host's", "manual", "docker run --ipc=host …"),
        ),
    )


RULE = Rule("ATN222", "warning", check)
