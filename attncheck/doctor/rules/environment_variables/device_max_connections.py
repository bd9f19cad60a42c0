"""CUDA_DEVICE_MAX_CONNECTIONS does not suit this job's kind of parallelism.

What it checks: the variable and accelerate's settings: 1 under FSDP, or any other value under Megatron on Ampere and
Hopper.

Why it matters: with 1, FSDP's transfers wait for its kernels and training is slower. Megatron's tensor and context
parallelism needs 1 on GPUs before Blackwell to overlap in the right order, and Megatron asserts it.

What to do: unset it for FSDP, set it to 1 for Megatron.

Source: verl 0.9.1, `verl/trainer/constants_ppo.py` ("Torch-FSDP2 / Megatron-FSDP must NOT set it to 1");
Megatron-LM's documentation of CUDA_DEVICE_MAX_CONNECTIONS.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, value_or

NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
_TRUE_VALUES = ("1", "true", "yes", "on", "y", "t")


def check(snapshot: Snapshot) -> Problems:
    value = value_or(snapshot.env(NAME), "")
    if _is_on(snapshot, "ACCELERATE_USE_FSDP") and value == "1":
        yield Problem(
            message=f"{NAME}=1 slows FSDP down",
            subject=NAME,
            evidence=("ACCELERATE_USE_FSDP is on",),
            fixes=(install.unset_variable(NAME),),
            locations=locate_variables(snapshot, NAME),
        )
    elif _is_on(snapshot, "ACCELERATE_USE_MEGATRON_LM") and value != "1" and _has_gpu_before_blackwell(snapshot):
        snapshot.sets(NAME)
        yield Problem(
            message=f"Megatron needs {NAME}=1 on this GPU; it is {value or 'not set'}",
            subject=NAME,
            evidence=("ACCELERATE_USE_MEGATRON_LM is on",),
            fixes=(install.export_variable(NAME, "1"),),
            locations=locate_variables(snapshot, NAME, "ACCELERATE_USE_MEGATRON_LM"),
        )


def _is_on(snapshot: Snapshot, name: str) -> bool:
    return value_or(snapshot.env(name), "").lower() in _TRUE_VALUES


def _has_gpu_before_blackwell(snapshot: Snapshot) -> bool:
    capabilities = [device.compute_capability for device in snapshot.visible_devices()]
    return any(isinstance(capability, Known) and capability.value[0] in (8, 9) for capability in capabilities)


RULE = Rule("ATN552", "warning", check)
