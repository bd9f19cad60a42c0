"""CUDA_VISIBLE_DEVICES hides some of the GPUs that it names, or all GPUs.

What it checks: the entries of CUDA_VISIBLE_DEVICES against the GPUs of the machine. CUDA stops reading at the first
invalid entry, so the GPUs of all later entries are hidden. A repeated entry hides all GPUs.

Why it matters: `torch.cuda.is_available()` is False, or ranks die with "invalid device ordinal". Inside a container
or a Slurm step GPUs are numbered from 0 again, so a number copied from outside is often wrong.

What to do: unset the variable, or list GPUs that exist.

Source: NVIDIA CUDA C++ Programming Guide, "CUDA Environment Variables"; torch 2.13.0 torch/cuda/__init__.py
`_parse_visible_devices`.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import cuda_of_torch, gpus, locate_variables, sees_gpu
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot

NAME = "CUDA_VISIBLE_DEVICES"


def check(snapshot: Snapshot) -> Problems:
    setting = snapshot.env(NAME)
    if not isinstance(setting, Known) or cuda_of_torch(snapshot) is None:
        return
    if not gpus.are_hidden_by_mistake(snapshot):
        sees_gpu(snapshot)
        return
    devices, visible = gpus.all_gpus(snapshot), gpus.visible_gpus(snapshot)
    entries = [entry for entry in setting.value.split(",") if entry.strip()]
    count = f"{len(devices)} GPU{'s' if len(devices) > 1 else ''}"
    assignment = f'{NAME}="{_redact_uuids(setting.value)}"'
    yield Problem(
        message=f"{assignment} leaves {len(visible)} of {count} visible"
        + (f" although it names {len(entries)}" if len(entries) > len(visible) else ""),
        subject=NAME,
        evidence=(assignment, *gpus.list_gpu_kinds(devices)),
        fixes=(
            install.unset_variable(NAME, "use every GPU"),
            install.export_variable(NAME, ",".join(str(gpu.index) for gpu in devices), "or list GPUs that exist"),
        ),
        locations=locate_variables(snapshot, NAME),
    )


def _redact_uuids(value: str) -> str:
    """Return the setting without UUIDs, which identify a machine."""
    entries = (entry.strip() for entry in value.split(","))
    return ",".join(entry[:4] + "…" if entry.startswith(("GPU-", "MIG-")) else entry for entry in entries)


RULE = Rule("ATN213", "error", check)
