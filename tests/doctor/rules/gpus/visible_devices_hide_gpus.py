"""Cases for ATN213."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_visible_devices(setting: str, count: int, *visible: int) -> Snapshot:
    """Set the variable on a machine of `count` GPUs of which these stay visible."""
    machine = s.with_gpus(s.h200(), *[(9, 0)] * count)
    assert isinstance(machine.devices, s.Known)
    gpus = tuple(replace(gpu, visible=gpu.index in visible) for gpu in machine.devices.value)
    return s.with_env(replace(machine, devices=s.Known(gpus)), CUDA_VISIBLE_DEVICES=setting)


FIRES = {
    "empty": with_visible_devices("", 2),
    "-1": with_visible_devices("-1", 2),
    "a GPU that is not there": with_visible_devices("8", 8),
    "a GPU that is not there, and what follows": with_visible_devices("0,9,1", 8, 0),
    "repeated": with_visible_devices("0,0", 2),
    "a UUID of another machine": with_visible_devices("GPU-1234abcd", 1),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.with_env(s.laptop(), CUDA_VISIBLE_DEVICES=""),
    "not set": s.with_gpus(s.h200(), (9, 0), (9, 0)),
    "some of them, meant": with_visible_devices("1,3", 4, 1, 3),
    "all": with_visible_devices("0,1", 2, 0, 1),
    "a MIG device": with_visible_devices("MIG-1,MIG-2", 1, 0),
    "a CPU build": s.with_torch(with_visible_devices("", 1), version="2.11.0+cpu", cuda=s.Absent("not a CUDA build")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the variable and the fix, and no UUID."""
    return "unset CUDA_VISIBLE_DEVICES" in finding and "1234abcd" not in finding
