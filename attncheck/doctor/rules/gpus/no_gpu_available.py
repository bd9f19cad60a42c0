"""torch is a CUDA build on an NVIDIA machine, but no GPU is available.

What it checks: no GPU is listed although a driver answers, nvidia-smi is installed, or NVIDIA GPUs are on the PCI
bus. A machine without any sign of NVIDIA hardware is not judged.

Why it matters: the job will not see a GPU. Usually the container was started without `--gpus`, the batch job without a
GPU request, or the driver is not installed on the host.

What to do: pass the GPUs to the container, or request one from the scheduler.

Source: NVIDIA Container Toolkit documentation, "Running a Sample Workload"; observed by nvidia-smi and /sys/bus/pci.
"""

from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Absent, Fix, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if gpus.torch_cuda_version(snapshot) is None or gpus.cuda_works(snapshot):
        return
    if not isinstance(snapshot.devices, Absent) or not gpus.lacks_expected_gpus(snapshot):
        return
    reason = snapshot.devices.reason
    yield Problem(
        message=f"no GPU is available here: {reason}",
        subject="GPUs",
        evidence=(
            reason,
            *((f"driver {snapshot.driver.value.version}",) if isinstance(snapshot.driver, Known) else ()),
        ),
        fixes=(
            Fix("in a container, pass the GPUs through", "manual", "docker run --gpus all …"),
            Fix("under Slurm, request one", "manual", "srun --gpus=1 …"),
        ),
    )


RULE = Rule("ATN223", "warning", check)
