"""The device lane against nvidia-smi. The program itself is simulated: CI has no GPU.

What the fakes print is the format of real drivers: `topo -m` and `-q` as published for H100, A100, RTX 4090 and 5090
machines (drivers 525 to 615), the errors word for word. The fakes are real processes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.devices import Device, Driver, Topology
from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.doctor.probes.payload.gpus import nvidia_smi, nvidia_text, nvml, visible_devices
from attncheck.doctor.probes.payload.processes import limits
from tests.doctor import fake_nvidia_smi as fake


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide the real machine: only what a test installs can be found."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvidia_smi, "FOLDERS", ())
    monkeypatch.setattr(nvidia_smi, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(nvidia_smi, "PCI", str(tmp_path / "pci"))
    monkeypatch.setattr(nvml, "_LIBRARY", "libnot-there.so.1")
    return tmp_path


@dataclass(frozen=True)
class Answer:
    """What the lane answers, in types."""

    driver: Fact[Driver]
    devices: Fact[tuple[Device, ...]]
    topology: Fact[Topology]
    problems: tuple[str, ...]


def look(seconds: float = 10.0) -> tuple[Fact[Driver], Fact[tuple[Device, ...]], Fact[Topology], tuple[str, ...]]:
    """Return the lane's answer, read as attncheck reads it, which also proves its shape."""
    answer = nvidia_smi.look(seconds)
    assert "GPU-" not in str(answer), "a UUID names a machine"
    read = codec.read(Answer, answer)
    return read.driver, read.devices, read.topology, read.problems


def devices(seconds: float = 10.0) -> tuple[Device, ...]:
    found = look(seconds)[1]
    assert isinstance(found, Known)
    return found.value


def test_one_h200(machine: Path) -> None:
    fake.answering(machine / "bin")
    driver, found, topology, problems = look()
    assert driver == Known(Driver("580.159.04", Known("13.0"), Known("Completed")))
    assert isinstance(found, Known)
    (gpu,) = found.value
    assert (gpu.index, gpu.name, gpu.sm, gpu.visible) == (0, "NVIDIA H200", "sm_90", True)
    assert gpu.memory_total_bytes == Known(143771 << 20) and gpu.memory_free_bytes == Known(143167 << 20)
    assert gpu.mig == Known(False) and gpu.ecc == Known(True)
    assert topology == Known(Topology((), (0,)))
    assert problems == ()


def test_eight_gpus_on_nvswitch(machine: Path) -> None:
    fake.answering(machine / "bin", gpus=fake.eight_gpus(), topo=fake.switched())
    _, found, topology, _ = look()
    assert isinstance(found, Known) and isinstance(topology, Known)
    assert len(found.value) == 8
    assert len(topology.value.links) == 28
    assert {link.kind for link in topology.value.links} == {"NV18"}
    assert topology.value.numa_nodes == (0, 0, 0, 0, 1, 1, 1, 1)


def test_pcie_matrix() -> None:
    found = nvidia_text.parse_topology(fake.pcie())
    kinds = {(link["first"], link["second"]): link["kind"] for link in found["links"]}
    assert kinds == {(0, 1): "NV12", (0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS", (2, 3): "PHB"}
    assert found["numa_nodes"] == [0, 1, 2, 3]


def test_matrix_set_apart_by_spaces() -> None:
    text = (
        "        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV18    PIX     0-23,96-119     0               N/A\n"
        "GPU1    NV18     X      NODE    0-23,96-119     0-1             N/A\n"
        "NIC0    PIX     NODE     X\n"
    )
    found = nvidia_text.parse_topology(text)
    assert [(link["first"], link["second"], link["kind"]) for link in found["links"]] == [(0, 1, "NV18")]
    assert found["numa_nodes"] == [0, -1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (fake.HEADER, {"version": "580.159.04", "cuda": "13.0", "fabric": "Completed"}),
        (fake.BANNER_610, {"version": "610.57.04", "cuda": "13.3", "fabric": ""}),
        (
            fake.HEADER.replace("Completed", "In Progress"),
            {"version": "580.159.04", "cuda": "13.0", "fabric": "In Progress"},
        ),
        (fake.HEADER.replace("Completed", "N/A"), {"version": "580.159.04", "cuda": "13.0", "fabric": ""}),
        (
            "Driver Version : 525.147.01\nCUDA Version : Not Found\n",
            {"version": "525.147.01", "cuda": "", "fabric": ""},
        ),
    ],
)
def test_header(text: str, expected: dict[str, str]) -> None:
    assert nvidia_text.parse_header(text) == expected


def test_fields_that_are_not_told() -> None:
    line = "0, NVIDIA GB10, 12.1, [N/A], [Not Supported], [N/A], [N/A], 580.142, GPU-1\n"
    (gpu,) = nvidia_text.parse_gpus(line)
    assert gpu["compute_capability"] == {"known": [12, 1]}
    assert "unreadable" in gpu["memory_total_bytes"] and "unreadable" in gpu["memory_free_bytes"]
    assert "absent" in gpu["mig"] and "absent" in gpu["ecc"]


def test_a_name_with_commas() -> None:
    (gpu,) = nvidia_text.parse_gpus(
        "1, Quadro RTX, 6000, 24 GB, 7.5, 24576, 24000, [N/A], Disabled, 550.54.15, GPU-1\n"
    )
    assert gpu["name"] == "Quadro RTX, 6000, 24 GB"
    assert gpu["compute_capability"] == {"known": [7, 5]}


def test_old_driver_does_not_know_compute_cap(machine: Path) -> None:
    old = "0, Tesla V100-SXM2-32GB, 32510, 32500, Enabled, 440.33.01, GPU-1\n"
    fake.install(
        machine / "bin",
        "if asked != 'gpus': sys.exit(0)\n"
        "if 'compute_cap' in arguments[0]:\n"
        "    print('Field \"compute_cap\" is not a valid field to query.\\n')\n"
        "    sys.exit(2)\n"
        f"sys.stdout.write({old!r})\n",
    )
    driver, found, *_ = look()
    assert isinstance(driver, Known) and driver.value.version == "440.33.01"
    assert isinstance(driver.value.cuda, Unreadable)
    assert isinstance(found, Known) and found.value[0].sm == "sm_?"
    assert isinstance(found.value[0].mig, Unreadable)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.57\n", 18),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.\n",
            9,
        ),
        ("Failed to initialize NVML: Insufficient Permissions\n", 4),
        ("Failed to initialize NVML: Unknown Error\n", 255),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n", 12),
        ("", 9),
        ("", 0),
        ("Segmentation fault\n", 139),
        ("<html>not nvidia-smi</html>\n", 0),
    ],
)
def test_broken(machine: Path, words: str, status: int) -> None:
    fake.saying(machine / "bin", words, status)
    driver, found, topology, _ = look()
    assert isinstance(driver, Unreadable) and isinstance(topology, Unreadable)
    assert isinstance(found, Absent), "nothing shows that there is a GPU"
    assert found.reason.startswith("nvidia-smi: ")
    if words.startswith("Failed"):
        assert words.splitlines()[0] in found.reason


def test_broken_beside_a_gpu(machine: Path) -> None:
    fake.saying(machine / "bin", "Failed to initialize NVML: Driver/library version mismatch\n", 18)
    card = machine / "pci" / "0000:1b:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    (machine / "proc").mkdir()
    (machine / "proc" / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (dvs)\nGCC version: 12\n"
    )
    driver, found, *_ = look()
    assert isinstance(driver, Known) and driver.value.version == "570.133.20"
    assert isinstance(found, Unreadable)
    assert "mismatch" in found.reason and "1 NVIDIA GPU on the PCI bus" in found.reason


def test_no_devices(machine: Path) -> None:
    fake.install(
        machine / "bin",
        f"sys.stdout.write({fake.HEADER!r} if asked == '-q' else 'No devices were found\\n')\nos._exit(6)\n",
    )
    fake.saying(machine / "bin", "No devices were found\n", 6)
    driver, found, *_ = look()
    assert isinstance(driver, Absent) and isinstance(found, Absent)
    assert "No devices were found" in found.reason


def test_a_gpu_that_is_lost_beside_one_that_works(machine: Path) -> None:
    lost = "Unable to determine the device handle for GPU1: 0000:1C:00.0: Unknown Error\n"
    fake.answering(machine / "bin", gpus=lost + fake.H200)
    _, found, _, problems = look()
    assert isinstance(found, Known) and len(found.value) == 1
    assert problems and "Unable to determine" in problems[0]


def test_warnings_around_the_answer(machine: Path) -> None:
    fake.answering(machine / "bin", gpus="WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n" + fake.H200 + "\n\n")
    assert len(devices()) == 1


def test_hung_with_a_child_of_its_own(machine: Path) -> None:
    fake.install(
        machine / "bin",
        "child = subprocess.Popen([sys.executable, '-IS', '-c', 'import time; time.sleep(300)'])\n"
        f"open({str(machine)!r} + '/pids', 'a').write('%d %d ' % (os.getpid(), child.pid))\n"
        "time.sleep(300)\n",
    )
    begin = time.monotonic()
    driver, found, *_ = look(2.0)
    assert time.monotonic() - begin < 5
    assert isinstance(driver, Unreadable) and "did not answer within 2 s" in driver.reason
    assert isinstance(found, Absent) and found.reason.startswith("nvidia-smi: ")
    pids = [int(word) for word in (machine / "pids").read_text().split()]
    assert len(pids) == 6
    end = time.monotonic() + 2
    while any(map(fake.alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not [pid for pid in pids if fake.alive(pid)]


def test_an_answer_whose_child_holds_on(machine: Path) -> None:
    fake.install(
        machine / "bin",
        "subprocess.Popen([sys.executable, '-IS', '-c', 'import time; time.sleep(300)'])\n"
        f"sys.stdout.write({{'gpus': {fake.H200!r}, 'topo': {fake.ONE!r}, '-q': {fake.HEADER!r}}}[asked])\n",
    )
    begin = time.monotonic()
    assert len(devices(30.0)) == 1
    assert time.monotonic() - begin < 10


def test_hung_topology_costs_the_topology_alone(machine: Path) -> None:
    fake.install(
        machine / "bin",
        "if asked == 'topo': time.sleep(300)\n"
        f"sys.stdout.write({{'gpus': {fake.eight_gpus()!r}, '-q': {fake.HEADER!r}}}[asked])\n",
    )
    driver, found, topology, _ = look(2.0)
    assert isinstance(driver, Known) and isinstance(found, Known) and len(found.value) == 8
    assert isinstance(topology, Unreadable)


def test_garbage(machine: Path) -> None:
    fake.install(machine / "bin", "sys.stdout.buffer.write(bytes(range(256)) * 400)\n")
    driver, found, *_ = look()
    assert isinstance(driver, Unreadable) and isinstance(found, Absent)
    assert found.reason.isprintable()


def test_a_flood_is_cut(machine: Path) -> None:
    fake.install(
        machine / "bin",
        "block = b'0, ' * 350000\nfor _ in range(100):\n    sys.stdout.buffer.write(block)\n",
    )
    begin = time.monotonic()
    found = look()[1]
    assert isinstance(found, Absent) and "wrote more than 4 MiB" in found.reason
    assert time.monotonic() - begin < 8


def test_a_program_that_cannot_run(machine: Path) -> None:
    fake.install(machine / "bin", "").write_text("#!/not/there\n")
    assert isinstance(look()[0], Unreadable)


def test_nothing_at_all() -> None:
    driver, found, topology, problems = look()
    assert isinstance(driver, Absent) and isinstance(found, Absent) and isinstance(topology, Absent)
    assert problems == ()


def test_proc_alone(machine: Path) -> None:
    card = machine / "proc" / "gpus" / "0000:1b:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 34\nGPU UUID: \t GPU-1\n")
    (machine / "proc" / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 2024\n"
    )
    driver, found, *_ = look()
    assert isinstance(driver, Known) and driver.value.version == "535.161.08"
    assert isinstance(found, Known) and found.value[0].name == "NVIDIA H200"
    assert found.value[0].sm == "sm_?"


def test_gpus_on_the_bus_without_a_driver(machine: Path) -> None:
    card = machine / "pci" / "0000:1b:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    found = look()[1]
    assert isinstance(found, Absent) and "on the PCI bus" in found.reason


UUIDS = ["GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("0,0", []),
        ("1gpu2,2ampere", [1, 2]),
        ("GPU-bbbb", [2]),
        ("GPU-aaaa1111,GPU-bbbb3333", [0, 2]),
        ("GPU-aaaa", []),  # two begin so
        ("GPU-bbbb,GPU-cccc,GPU-aaaa1", [2]),
        ("GPU-bbbb,0", [2]),
        ("MIG-5c0f", [1]),
        ("MIG-none", []),
        ("MIG-GPU-bbbb3333/1/0", [2]),
    ],
)
def test_visible(setting: str | None, expected: list[int]) -> None:
    assert visible_devices.order(setting, UUIDS, {"MIG-5c0f": 1}) == expected


def test_hidden_gpus_are_marked(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answering(machine / "bin", gpus=fake.eight_gpus(), topo=fake.switched())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert [gpu.index for gpu in devices() if gpu.visible] == [1, 3]


def test_mig_device_is_found_on_its_gpu(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000)\n"
        "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-10000000-0000)\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-5c0f1d6e-33aa-5d0f-a2f3-3f3f3f3f3f3f)\n"
    )
    fake.answering(machine / "bin", gpus=fake.eight_gpus(), topo=fake.switched(), listed=listed)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5c0f1d6e-33aa-5d0f-a2f3-3f3f3f3f3f3f")
    assert [gpu.index for gpu in devices() if gpu.visible] == [1]


def test_all_three_questions_are_asked_at_once(machine: Path) -> None:
    answers: Any = {"gpus": fake.H200, "topo": fake.ONE, "-q": fake.HEADER}
    fake.install(machine / "bin", f"time.sleep(0.5)\nsys.stdout.write({answers!r}[asked])\n")
    begin = time.monotonic()
    assert len(devices()) == 1
    assert time.monotonic() - begin < 1.4


def test_output_limit_leaves_room_for_real_machines() -> None:
    assert 100 * len(fake.switched()) < limits.OUTPUT_LIMIT
