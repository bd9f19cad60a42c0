"""The device lane: the NVIDIA driver, the GPUs and their links, asked of nvidia-smi under a deadline, without torch.

Where there is no nvidia-smi, NVML is asked instead, and then /proc. A reason that begins with "nvidia-smi: " says that
nvidia-smi is there and does not work; "devices" is then unreadable where something else shows a GPU, else absent.
"""

from __future__ import annotations

import os
import re
import sys

from .. import files
from ..facts import absent, known, unreadable
from . import nvidia_text, visible_devices
from .nvidia_text import parse_gpus, parse_header, parse_topology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from ..processes.limits import Run

__all__ = ["look", "parse_gpus", "parse_header", "parse_topology"]

FOLDERS = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib")
LONGEST_SECONDS = 30.0  # whatever the caller allows: without persistence mode 8 GPUs can take 10 s to wake
PROC = "/proc/driver/nvidia"
PCI = "/sys/bus/pci/devices"
# What nvidia-smi prints where it cannot do its work, and whether the driver is at fault (else there is no GPU).
_FAILURES = (
    ("couldn't communicate with the NVIDIA driver", True),
    ("Driver/library version mismatch", True),
    ("Failed to initialize NVML", True),
    ("Insufficient Permissions", True),
    ("Unable to determine the device handle", True),
    ("libnvidia-ml", True),
    ("GPU is lost", True),
    ("No devices were found", False),
    ("No devices found", False),
)


def look(deadline_seconds: float = 10.0) -> Dict[str, Any]:
    """Return "driver", "devices" and "topology" as facts, and "problems"."""
    seconds = min(max(deadline_seconds, 0.1), LONGEST_SECONDS)
    program = find()
    answer = _ask(program, seconds) if program else _without_nvidia_smi()
    _mark_visible(answer, program, seconds)
    return answer


def find() -> str:
    """Return the path of nvidia-smi, "" for none."""
    if sys.platform == "win32":  # no process groups to stop a hung one with
        return ""
    found = files.find_program("nvidia-smi")
    paths = [os.path.join(folder, "nvidia-smi") for folder in FOLDERS]
    return found or next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def _ask(program: str, seconds: float) -> Dict[str, Any]:
    from ..processes.limits import run_all

    runs = run_all(
        {
            "gpus": _query(program, nvidia_text.FIELDS),
            "header": [program, "-q", "-i", "0"],
            "topology": [program, "topo", "-m"],
        },
        seconds,
    )
    fields: Tuple[str, ...] = nvidia_text.FIELDS
    run = runs["gpus"]
    if "is not a valid field to query" in run.text:
        fields = nvidia_text.OLD_FIELDS
        run = run_all({"gpus": _query(program, fields)}, seconds)["gpus"]
    gpus = [] if run.stopped else parse_gpus(run.text, fields)
    header = parse_header(runs["header"].text)
    if not gpus:
        return _no_gpus(run, header)
    return {
        "driver": _driver(gpus[0]["driver"] or header["version"], header, runs["header"]),
        "devices": known(gpus),
        "topology": _topology(runs["topology"], len(gpus)),
        "problems": ["nvidia-smi: " + line for line in _complaints(run)],
    }


def _query(program: str, fields: Tuple[str, ...]) -> List[str]:
    return [program, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]


def _driver(version: str, header: Dict[str, Any], run: Run) -> Dict[str, object]:
    version = nvidia_text.told(version) or _proc_version()
    if not re.match(r"\d+(\.\d+)*\Z", version):
        return unreadable("nvidia-smi does not tell the driver's version")
    reason = run.problem or "nvidia-smi -q does not tell it"
    cuda, fabric = str(header["cuda"]), str(header["fabric"])
    return known(
        {
            "version": version,
            "cuda": known(cuda) if cuda else unreadable(reason),
            "fabric": known(fabric) if fabric else absent("not told: this machine has no NVSwitch fabric"),
        }
    )


def _no_gpus(run: Run, header: Dict[str, Any]) -> Dict[str, Any]:
    """Return the facts where nvidia-smi names no GPU: there is none, or it does not work."""
    broken, words = _failure(run)
    reason = "nvidia-smi: " + words
    if not broken:
        version = str(header["version"]) or _proc_version()
        driver = _driver(version, header, run) if version else absent(reason)
        return {"driver": driver, "devices": absent(reason), "topology": absent("no GPU"), "problems": []}
    version = _proc_version()
    driver = unreadable(reason)
    if version:
        driver = known({"version": version, "cuda": unreadable(reason), "fabric": unreadable(reason)})
    shown = evidence()
    devices = unreadable(reason + "; " + shown) if shown else absent(reason)
    return {"driver": driver, "devices": devices, "topology": unreadable(reason), "problems": []}


def _failure(run: Run) -> Tuple[bool, str]:
    """Return whether nvidia-smi is broken, and in which words."""
    for words, broken in _FAILURES:
        if words.lower() in run.text.lower():
            line = next(line for line in run.text.splitlines() if words.lower() in line.lower())
            return broken, " ".join(line.split())[:200]
    if run.problem:
        lines = [line.strip() for line in run.text[:10000].splitlines() if line.strip().isprintable()]
        last = [line for line in lines if line][-1:]
        return True, run.problem + (": " + last[0][:160] if last else "")
    return True, "it prints nothing" if not run.text.strip() else "what it prints cannot be read"


def _complaints(run: Run) -> List[str]:
    """Return what nvidia-smi says of GPUs that it could not ask while it answers for others."""
    words = ("unable to determine the device handle", "gpu is lost")
    lines = [" ".join(line.split())[:200] for line in run.text.splitlines()[:1000]]
    return [line for line in lines if any(word in line.lower() for word in words)][:8]


def _topology(run: Run, count: int) -> Dict[str, object]:
    found = parse_topology(run.text)
    if len(found["numa_nodes"]) >= count:
        return known(found)
    if count == 1:
        return known({"links": [], "numa_nodes": [-1]})
    return unreadable("nvidia-smi topo -m: " + (run.problem or "what it prints cannot be read"))


def _proc_version() -> str:
    match = re.search(r"Kernel Module[^\n]*?\s(\d{3,4}(?:\.\d+)+)\s", files.text(PROC + "/version"))
    return match.group(1) if match else ""


def _proc_names() -> List[str]:
    """Return the names of the GPUs that the driver holds, in the order of their places on the PCI bus."""
    found = []
    for entry in sorted(files.names(PROC + "/gpus")):
        match = re.search(r"^Model:\s*(\S.*?)\s*$", files.text(PROC + "/gpus/" + entry + "/information"), re.MULTILINE)
        found.append(match.group(1)[:200] if match else "NVIDIA GPU")
    return found


def _on_pci() -> int:
    """Return how many NVIDIA display or 3D controllers are on the PCI bus."""
    count = 0
    for entry in files.names(PCI):
        if files.text(PCI + "/" + entry + "/vendor", 16).strip().lower() == "0x10de":
            count += files.text(PCI + "/" + entry + "/class", 16).startswith("0x03")
    return count


def evidence() -> str:
    """Return what shows that there is a GPU although the driver does not say so; "" where nothing does."""
    held = len(_proc_names())
    if held:
        return "%d GPU%s in %s/gpus" % (held, "s" if held > 1 else "", PROC)
    count = _on_pci()
    if count:
        return "%d NVIDIA GPU%s on the PCI bus" % (count, "s" if count > 1 else "")
    return "/dev/nvidia0 exists" if os.path.exists("/dev/nvidia0") else ""


def _without_nvidia_smi() -> Dict[str, Any]:
    from . import nvml

    answer: Dict[str, Any] = nvml.look()
    if not answer:
        answer = {"driver": _proc_driver(), "devices": _proc_devices()}
    several = len(answer["devices"].get("known", ())) > 1
    answer["topology"] = unreadable("there is no nvidia-smi to ask") if several else absent("no pair of GPUs")
    answer["problems"] = []
    return answer


def _proc_driver() -> Dict[str, object]:
    version = _proc_version()
    if not version:
        return absent("there is no nvidia-smi, no libnvidia-ml.so.1 and no " + PROC)
    reason = unreadable("there is no nvidia-smi to ask")
    return known({"version": version, "cuda": reason, "fabric": reason})


def _proc_devices() -> Dict[str, object]:
    names = _proc_names()
    if not names:
        count = _on_pci()
        return absent("%d NVIDIA GPUs on the PCI bus, but no driver" % count if count else "no GPU")
    reason = unreadable("there is no nvidia-smi to ask")
    fields = ("compute_capability", "memory_total_bytes", "memory_free_bytes", "mig", "ecc", "kernel")
    blank: Dict[str, Any] = dict.fromkeys(fields, reason)
    return known(
        [dict(blank, index=index, name=name, visible=True, uuid="", driver="") for index, name in enumerate(names)]
    )


def _mark_visible(answer: Dict[str, Any], program: str, seconds: float) -> None:
    """Set "visible" of every GPU, and take out what was for our own use: UUIDs tell machines apart."""
    gpus = answer["devices"].get("known", [])
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    mig: Dict[str, int] = {}
    if gpus and program and setting is not None and setting.strip().startswith("MIG-"):
        from ..processes.limits import run_all

        mig = nvidia_text.parse_mig(run_all({"list": [program, "-L"]}, seconds)["list"].text)
    seen = visible_devices.order(setting, [gpu["uuid"] for gpu in gpus], mig)
    for position, gpu in enumerate(gpus):
        gpu["visible"] = position in seen
        del gpu["uuid"], gpu["driver"]
