"""Part of a visible GPU's memory is in use before the job starts.

What it checks: the free memory of every visible GPU. It is reported if more than 15 % and more than 2 GiB are in use.
A desktop, the driver's own reserve and attncheck's tiny kernel use less. GPUs in MIG mode are not judged.

Why it matters: the job runs out of memory although it fitted before. The cause is usually a process of an earlier run
that was not stopped. It also slows kernels down.

What to do: check who owns the processes and end them, or use another GPU.

Source: observed by nvidia-smi (memory.free, memory.total).
"""

from attncheck.core.devices import Device
from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot

MAX_SHARE_IN_USE = 0.15
BYTES_PER_GIB = 1 << 30


def check(snapshot: Snapshot) -> Problems:
    for gpu in gpus.visible_gpus(snapshot):
        used, total = _used_and_total_bytes(gpu)
        if gpu.mig == Known(True) or used <= 2 * BYTES_PER_GIB or used <= MAX_SHARE_IN_USE * total:
            continue
        shares = f"{used / BYTES_PER_GIB:.1f} of {total / BYTES_PER_GIB:.1f} GiB"
        yield Problem(
            message=f"{shares} of GPU {gpu.index} ({gpu.name}) are already in use",
            subject=f"GPU {gpu.index}",
            evidence=(f"{(total - used) / BYTES_PER_GIB:.1f} GiB free before the job starts",),
            fixes=(
                Fix(
                    "see which processes hold it",
                    "advice",
                    f"nvidia-smi -i {gpu.index} --query-compute-apps=pid,process_name,used_memory --format=csv",
                ),
            ),
        )


def _used_and_total_bytes(gpu: Device) -> tuple[int, int]:
    if not isinstance(gpu.memory_total_bytes, Known) or not isinstance(gpu.memory_free_bytes, Known):
        return 0, 0
    return gpu.memory_total_bytes.value - gpu.memory_free_bytes.value, gpu.memory_total_bytes.value


RULE = Rule("ATN211", "warning", check)
