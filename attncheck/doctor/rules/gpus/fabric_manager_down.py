"""The NVSwitch fabric is not initialised, so CUDA cannot start.

What it checks: the fabric state that `nvidia-smi -q` reports for GPUs behind NVSwitches, and error 802 in torch's
message. If torch did start CUDA, a state other than "Completed" is ignored.

Why it matters: on HGX and DGX machines every CUDA call fails with "Error 802: system not yet initialized" until the
fabric manager, of exactly the driver's version, has trained the NVLinks.

What to do: start nvidia-fabricmanager; after a driver update install the fabric manager of the same version.

Source: pytorch/pytorch#129749; NVIDIA/nccl#1672; NVIDIA Fabric Manager User Guide, "Getting Started".
"""

from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    works, error = gpus.cuda_works(snapshot), gpus.cuda_error(snapshot)
    driver = snapshot.driver.value if isinstance(snapshot.driver, Known) else None
    state = driver.fabric.value if driver and isinstance(driver.fabric, Known) else ""
    is_not_initialized = "802" in error or "system not yet initialized" in error
    if works or not (is_not_initialized or state not in ("", "Completed")):
        return
    version = driver.version if driver else "the driver's"
    yield Problem(
        message=(f"the NVSwitch fabric is not ready (state: {state or 'not reported'}), so CUDA does not start"),
        subject="nvidia-fabricmanager",
        evidence=(
            *((f"nvidia-smi -q: fabric state {state}",) if state else ()),
            *((f"import lane: {error}",) if error else ()),
        ),
        fixes=(
            Fix("start the fabric manager", "command", "sudo systemctl restart nvidia-fabricmanager", "unsafe"),
            Fix(f"install the fabric manager of version {version}", "manual", f"nvidia-fabricmanager {version}"),
        ),
        predicted=not is_not_initialized,
    )


RULE = Rule("ATN204", "error", check)
