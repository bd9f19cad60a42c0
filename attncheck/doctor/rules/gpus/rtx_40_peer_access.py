"""accelerate refuses several RTX 40 cards on this driver.

What it checks: accelerate's own test: more than one GPU, one of them an "RTX 40", a driver below 550.40.07, and
NCCL_P2P_DISABLE or NCCL_IB_DISABLE not set.

Why it matters: under torchrun, a Trainer stops at start with `NotImplementedError: Using RTX 4000 series doesn't
support faster communication broadband via P2P or IB`. `accelerate launch` sets both variables itself.

What to do: set both variables, or update the driver.

Source: accelerate 1.15.0 utils/environment.py `check_cuda_p2p_ib_support` and state.py line 319;
cocktailpeanut/fluxgym#283.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.gpus import FIRST_DRIVER_WITH_PEER_ACCESS, GPUS_WITHOUT_PEER_ACCESS
from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, only_if

VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


@only_if(Snapshot.has, "accelerate")
def check(snapshot: Snapshot) -> Problems:
    devices = gpus.all_gpus(snapshot)  # accelerate counts nvidia-smi's GPUs and ignores CUDA_VISIBLE_DEVICES
    cards = [gpu for gpu in devices if any(name in gpu.name for name in GPUS_WITHOUT_PEER_ACCESS)]
    driver = gpus.driver_version(snapshot)
    if (
        len(devices) < 2
        or not cards
        or not driver
        or driver >= tuple(map(int, FIRST_DRIVER_WITH_PEER_ACCESS.split(".")))
    ):
        return
    missing = [name for name in VARIABLES if not snapshot.sets(name)]
    if not missing:
        return
    version = ".".join(map(str, driver))
    variables = " and ".join(VARIABLES)
    yield Problem(
        message=f"accelerate refuses {gpus.describe_gpus(cards)} on driver {version} unless {variables} are set",
        subject="accelerate",
        evidence=(
            *gpus.list_gpu_kinds(devices),
            f"driver {version}, below {FIRST_DRIVER_WITH_PEER_ACCESS}",
            *(f"{name} is not set" for name in missing),
        ),
        fixes=tuple(install.export_variable(name, "1") for name in missing),
    )


RULE = Rule("ATN220", "error", check)
