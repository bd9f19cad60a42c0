"""The device lane: the NVIDIA driver, the GPUs and their links, from nvidia-smi under a deadline, without torch.

Without nvidia-smi, NVML is queried, and then /proc. A reason that begins with "nvidia-smi: " means that nvidia-smi is
installed but does not work. "devices" is then unreadable if other evidence shows a GPU, otherwise absent.
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
    from typing import Any

    from ..processes.limits import ProgramRun

__all__ = ["collect_gpus", "parse_gpus", "parse_header", "parse_topology"]

PROGRAM_FOLDERS = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib")
MAX_SECONDS = 30.0  # upper limit for any caller: without persistence mode, 8 GPUs can take 10 s to wake
PROC_FOLDER = "/proc/driver/nvidia"
PCI_FOLDER = "/sys/bus/pci/devices"
# Messages of nvidia-smi when it fails, and whether the driver is at fault (otherwise there is no GPU).
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


def collect_gpus(deadline_seconds: float = 10.0) -> dict[str, Any]:
    """Return "driver", "devices" and "topology" as facts, and "problems"."""
    seconds = min(max(deadline_seconds, 0.1), MAX_SECONDS)
    program = find_nvidia_smi()
    answer = _query_nvidia_smi(program, seconds) if program else _collect_without_nvidia_smi()
    _mark_visible(answer, program, seconds)
    return answer


def find_nvidia_smi() -> str:
    """Return the path of nvidia-smi; "" if there is none."""
    if sys.platform == "win32":  # no process groups, which are needed to stop a hung program
        return ""
    on_path = files.find_program("nvidia-smi")
    paths = [os.path.join(folder, "nvidia-smi") for folder in PROGRAM_FOLDERS]
    return on_path or next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def _query_nvidia_smi(program: str, seconds: float) -> dict[str, Any]:
    from ..processes.limits import run_programs

    runs = run_programs(
        {
            "gpus": _query_command(program, nvidia_text.FIELDS),
            "header": [program, "-q", "-i", "0"],
            "topology": [program, "topo", "-m"],
        },
        seconds,
    )
    fields: tuple[str, ...] = nvidia_text.FIELDS
    run = runs["gpus"]
    if "is not a valid field to query" in run.text:
        fields = nvidia_text.OLD_FIELDS
        run = run_programs({"gpus": _query_command(program, fields)}, seconds)["gpus"]
    gpus = [] if run.is_partial else parse_gpus(run.text, fields)
    header = parse_header(runs["header"].text)
    if not gpus:
        return _facts_without_gpus(run, header)
    return {
        "driver": _driver_fact(gpus[0]["driver"] or header["version"], header, runs["header"]),
        "devices": known(gpus),
        "topology": _topology_fact(runs["topology"], len(gpus)),
        "problems": ["nvidia-smi: " + line for line in _gpu_warnings(run)],
    }


def _query_command(program: str, fields: tuple[str, ...]) -> list[str]:
    return [program, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]


def _driver_fact(version: str, header: dict[str, Any], run: ProgramRun) -> dict[str, object]:
    version = nvidia_text.field_value(version) or _read_proc_version()
    if not re.match(r"\d+(\.\d+)*\Z", version):
        return unreadable("nvidia-smi does not report the driver's version")
    reason = run.problem or "nvidia-smi -q does not report it"
    cuda, fabric = str(header["cuda"]), str(header["fabric"])
    return known(
        {
            "version": version,
            "cuda": known(cuda) if cuda else unreadable(reason),
            "fabric": known(fabric) if fabric else absent("not reported: this machine has no NVSwitch fabric"),
        }
    )


def _facts_without_gpus(run: ProgramRun, header: dict[str, Any]) -> dict[str, Any]:
    """Return the facts for when nvidia-smi lists no GPU, because there is none or because it does not work."""
    broken, description = _diagnose_failure(run)
    reason = "nvidia-smi: " + description
    if not broken:
        version = str(header["version"]) or _read_proc_version()
        driver = _driver_fact(version, header, run) if version else absent(reason)
        return {"driver": driver, "devices": absent(reason), "topology": absent("no GPU"), "problems": []}
    version = _read_proc_version()
    driver = unreadable(reason)
    if version:
        driver = known({"version": version, "cuda": unreadable(reason), "fabric": unreadable(reason)})
    evidence = describe_gpu_evidence()
    devices = unreadable(reason + "; " + evidence) if evidence else absent(reason)
    return {"driver": driver, "devices": devices, "topology": unreadable(reason), "problems": []}


def _diagnose_failure(run: ProgramRun) -> tuple[bool, str]:
    """Return whether nvidia-smi is broken, and the message that shows it."""
    for pattern, broken in _FAILURES:
        if pattern.lower() in run.text.lower():
            line = next(line for line in run.text.splitlines() if pattern.lower() in line.lower())
            return broken, " ".join(line.split())[:200]
    if run.problem:
        lines = [line.strip() for line in run.text[:10000].splitlines() if line.strip().isprintable()]
        last_lines = [line for line in lines if line][-1:]
        return True, run.problem + (": " + last_lines[0][:160] if last_lines else "")
    return True, "it prints nothing" if not run.text.strip() else "its output cannot be parsed"


def _gpu_warnings(run: ProgramRun) -> list[str]:
    """Return nvidia-smi's messages about GPUs that it could not query, if it could query others."""
    patterns = ("unable to determine the device handle", "gpu is lost")
    lines = [" ".join(line.split())[:200] for line in run.text.splitlines()[:1000]]
    return [line for line in lines if any(pattern in line.lower() for pattern in patterns)][:8]


def _topology_fact(run: ProgramRun, count: int) -> dict[str, object]:
    topology = parse_topology(run.text)
    if len(topology["numa_nodes"]) >= count:
        return known(topology)
    if count == 1:
        return known({"links": [], "numa_nodes": [-1]})
    return unreadable("nvidia-smi topo -m: " + (run.problem or "its output cannot be parsed"))


def _read_proc_version() -> str:
    match = re.search(r"Kernel Module[^\n]*?\s(\d{3,4}(?:\.\d+)+)\s", files.read_text(PROC_FOLDER + "/version"))
    return match.group(1) if match else ""


def _list_proc_gpus() -> list[str]:
    """Return the names of the GPUs that the driver manages, in the order of their PCI addresses."""
    names = []
    for entry in sorted(files.list_folder(PROC_FOLDER + "/gpus")):
        text = files.read_text(PROC_FOLDER + "/gpus/" + entry + "/information")
        match = re.search(r"^Model:\s*(\S.*?)\s*$", text, re.MULTILINE)
        names.append(match.group(1)[:200] if match else "NVIDIA GPU")
    return names


def _count_pci_gpus() -> int:
    """Return how many NVIDIA display or 3D controllers are on the PCI bus."""
    count = 0
    for entry in files.list_folder(PCI_FOLDER):
        if files.read_text(PCI_FOLDER + "/" + entry + "/vendor", 16).strip().lower() == "0x10de":
            count += files.read_text(PCI_FOLDER + "/" + entry + "/class", 16).startswith("0x03")
    return count


def describe_gpu_evidence() -> str:
    """Return the evidence of a GPU that the driver does not list; "" if there is none."""
    count_in_proc = len(_list_proc_gpus())
    if count_in_proc:
        return "%d GPU%s in %s/gpus" % (count_in_proc, "s" if count_in_proc > 1 else "", PROC_FOLDER)
    count = _count_pci_gpus()
    if count:
        return "%d NVIDIA GPU%s on the PCI bus" % (count, "s" if count > 1 else "")
    return "/dev/nvidia0 exists" if os.path.exists("/dev/nvidia0") else ""


def _collect_without_nvidia_smi() -> dict[str, Any]:
    from . import nvml

    answer: dict[str, Any] = nvml.collect_gpus_by_nvml()
    if not answer:
        answer = {"driver": _proc_driver_fact(), "devices": _proc_devices_fact()}
    several = len(answer["devices"].get("known", ())) > 1
    answer["topology"] = unreadable("nvidia-smi was not found") if several else absent("no pair of GPUs")
    answer["problems"] = []
    return answer


def _proc_driver_fact() -> dict[str, object]:
    version = _read_proc_version()
    if not version:
        return absent("not found: nvidia-smi, libnvidia-ml.so.1 and " + PROC_FOLDER)
    reason = unreadable("nvidia-smi was not found")
    return known({"version": version, "cuda": reason, "fabric": reason})


def _proc_devices_fact() -> dict[str, object]:
    names = _list_proc_gpus()
    if not names:
        count = _count_pci_gpus()
        return absent("%d NVIDIA GPUs on the PCI bus, but no driver" % count if count else "no GPU")
    reason = unreadable("nvidia-smi was not found")
    fields = ("compute_capability", "memory_total_bytes", "memory_free_bytes", "mig", "ecc", "kernel")
    blank: dict[str, Any] = dict.fromkeys(fields, reason)
    return known(
        [dict(blank, index=index, name=name, visible=True, uuid="", driver="") for index, name in enumerate(names)]
    )


def _mark_visible(answer: dict[str, Any], program: str, seconds: float) -> None:
    """Set "visible" of every GPU, and remove fields for internal use, because UUIDs identify machines."""
    gpus = answer["devices"].get("known", [])
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    mig: dict[str, int] = {}
    if gpus and program and setting is not None and setting.strip().startswith("MIG-"):
        from ..processes.limits import run_programs

        mig = nvidia_text.parse_mig(run_programs({"list": [program, "-L"]}, seconds)["list"].text)
    visible = visible_devices.visible_positions(setting, [gpu["uuid"] for gpu in gpus], mig)
    for position, gpu in enumerate(gpus):
        gpu["visible"] = position in visible
        del gpu["uuid"], gpu["driver"]
