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
from tests.doctor import fake_nvidia_smi


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide the real machine: only what a test installs can be found."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvidia_smi, "PROGRAM_FOLDERS", ())
    monkeypatch.setattr(nvidia_smi, "PROC_FOLDER", str(tmp_path / "proc"))
    monkeypatch.setattr(nvidia_smi, "PCI_FOLDER", str(tmp_path / "pci"))
    monkeypatch.setattr(nvml, "LIBRARY", "libnot-there.so.1")
    return tmp_path


@dataclass(frozen=True)
class Answer:
    """The device lane's answer, typed."""

    driver: Fact[Driver]
    devices: Fact[tuple[Device, ...]]
    topology: Fact[Topology]
    problems: tuple[str, ...]


def collect_facts(
    seconds: float = 10.0,
) -> tuple[Fact[Driver], Fact[tuple[Device, ...]], Fact[Topology], tuple[str, ...]]:
    """Return the lane's driver, devices, topology and problems, read as attncheck reads them."""
    answer = nvidia_smi.collect_gpus(seconds)
    assert "GPU-" not in str(answer), "a UUID names a machine"
    facts = codec.read(Answer, answer)
    return facts.driver, facts.devices, facts.topology, facts.problems


def collect_devices(seconds: float = 10.0) -> tuple[Device, ...]:
    devices = collect_facts(seconds)[1]
    assert isinstance(devices, Known)
    return devices.value


def test_one_h200(machine: Path) -> None:
    fake_nvidia_smi.install_healthy(machine / "bin")
    driver, devices, topology, problems = collect_facts()
    assert driver == Known(Driver("580.159.04", Known("13.0"), Known("Completed")))
    assert isinstance(devices, Known)
    (gpu,) = devices.value
    assert (gpu.index, gpu.name, gpu.sm, gpu.visible) == (0, "NVIDIA H200", "sm_90", True)
    assert gpu.memory_total_bytes == Known(143771 << 20) and gpu.memory_free_bytes == Known(143167 << 20)
    assert gpu.mig == Known(False) and gpu.ecc == Known(True)
    assert topology == Known(Topology((), (0,)))
    assert problems == ()


def test_eight_gpus_on_nvswitch(machine: Path) -> None:
    fake_nvidia_smi.install_healthy(
        machine / "bin", gpus=fake_nvidia_smi.eight_gpus_csv(), topo=fake_nvidia_smi.nvswitch_topology()
    )
    _, devices, topology, _ = collect_facts()
    assert isinstance(devices, Known) and isinstance(topology, Known)
    assert len(devices.value) == 8
    assert len(topology.value.links) == 28
    assert {link.kind for link in topology.value.links} == {"NV18"}
    assert topology.value.numa_nodes == (0, 0, 0, 0, 1, 1, 1, 1)


def test_pcie_matrix() -> None:
    topology = nvidia_text.parse_topology(fake_nvidia_smi.pcie_topology())
    kinds = {(link["first"], link["second"]): link["kind"] for link in topology["links"]}
    assert kinds == {(0, 1): "NV12", (0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS", (2, 3): "PHB"}
    assert topology["numa_nodes"] == [0, 1, 2, 3]


def test_matrix_set_apart_by_spaces() -> None:
    text = (
        "        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV18    PIX     0-23,96-119     0               N/A\n"
        "GPU1    NV18     X      NODE    0-23,96-119     0-1             N/A\n"
        "NIC0    PIX     NODE     X\n"
    )
    topology = nvidia_text.parse_topology(text)
    assert [(link["first"], link["second"], link["kind"]) for link in topology["links"]] == [(0, 1, "NV18")]
    assert topology["numa_nodes"] == [0, -1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (fake_nvidia_smi.HEADER, {"version": "580.159.04", "cuda": "13.0", "fabric": "Completed"}),
        (fake_nvidia_smi.BANNER_610, {"version": "610.57.04", "cuda": "13.3", "fabric": ""}),
        (
            fake_nvidia_smi.HEADER.replace("Completed", "In Progress"),
            {"version": "580.159.04", "cuda": "13.0", "fabric": "In Progress"},
        ),
        (fake_nvidia_smi.HEADER.replace("Completed", "N/A"), {"version": "580.159.04", "cuda": "13.0", "fabric": ""}),
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
    fake_nvidia_smi.install_program(
        machine / "bin",
        "if query != 'gpus': sys.exit(0)\n"
        "if 'compute_cap' in arguments[0]:\n"
        "    print('Field \"compute_cap\" is not a valid field to query.\\n')\n"
        "    sys.exit(2)\n"
        f"sys.stdout.write({old!r})\n",
    )
    driver, devices, *_ = collect_facts()
    assert isinstance(driver, Known) and driver.value.version == "440.33.01"
    assert isinstance(driver.value.cuda, Unreadable)
    assert isinstance(devices, Known) and devices.value[0].sm == "sm_?"
    assert isinstance(devices.value[0].mig, Unreadable)


@pytest.mark.parametrize(
    ("output", "status"),
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
def test_broken(machine: Path, output: str, status: int) -> None:
    fake_nvidia_smi.install_failing(machine / "bin", output, status)
    driver, devices, topology, _ = collect_facts()
    assert isinstance(driver, Unreadable) and isinstance(topology, Unreadable)
    assert isinstance(devices, Absent), "nothing shows that there is a GPU"
    assert devices.reason.startswith("nvidia-smi: ")
    if output.startswith("Failed"):
        assert output.splitlines()[0] in devices.reason


def test_broken_beside_a_gpu(machine: Path) -> None:
    fake_nvidia_smi.install_failing(machine / "bin", "Failed to initialize NVML: Driver/library version mismatch\n", 18)
    card = machine / "pci" / "0000:1b:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    (machine / "proc").mkdir()
    (machine / "proc" / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (dvs)\nGCC version: 12\n"
    )
    driver, devices, *_ = collect_facts()
    assert isinstance(driver, Known) and driver.value.version == "570.133.20"
    assert isinstance(devices, Unreadable)
    assert "mismatch" in devices.reason and "1 NVIDIA GPU on the PCI bus" in devices.reason


def test_no_devices(machine: Path) -> None:
    fake_nvidia_smi.install_program(
        machine / "bin",
        f"sys.stdout.write({fake_nvidia_smi.HEADER!r} if query == '-q' else 'No devices were found\\n')\nos._exit(6)\n",
    )
    fake_nvidia_smi.install_failing(machine / "bin", "No devices were found\n", 6)
    driver, devices, *_ = collect_facts()
    assert isinstance(driver, Absent) and isinstance(devices, Absent)
    assert "No devices were found" in devices.reason


def test_a_gpu_that_is_lost_beside_one_that_works(machine: Path) -> None:
    lost = "Unable to determine the device handle for GPU1: 0000:1C:00.0: Unknown Error\n"
    fake_nvidia_smi.install_healthy(machine / "bin", gpus=lost + fake_nvidia_smi.H200_CSV)
    _, devices, _, problems = collect_facts()
    assert isinstance(devices, Known) and len(devices.value) == 1
    assert problems and "Unable to determine" in problems[0]


def test_warnings_around_the_answer(machine: Path) -> None:
    fake_nvidia_smi.install_healthy(
        machine / "bin", gpus="WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n" + fake_nvidia_smi.H200_CSV + "\n\n"
    )
    assert len(collect_devices()) == 1


def test_hung_with_a_child_of_its_own(machine: Path) -> None:
    fake_nvidia_smi.install_program(
        machine / "bin",
        "child = subprocess.Popen([sys.executable, '-IS', '-c', 'import time; time.sleep(300)'])\n"
        f"open({str(machine)!r} + '/pids', 'a').write('%d %d ' % (os.getpid(), child.pid))\n"
        "time.sleep(300)\n",
    )
    begin = time.monotonic()
    driver, devices, *_ = collect_facts(2.0)
    assert time.monotonic() - begin < 60
    assert isinstance(driver, Unreadable) and "did not answer within 2 s" in driver.reason
    assert isinstance(devices, Absent) and devices.reason.startswith("nvidia-smi: ")
    pids = [int(word) for word in (machine / "pids").read_text().split()]
    assert len(pids) == 6
    end = time.monotonic() + 30
    while any(map(fake_nvidia_smi.is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not [pid for pid in pids if fake_nvidia_smi.is_alive(pid)]


def test_an_answer_whose_child_holds_on(machine: Path) -> None:
    answers = {"gpus": fake_nvidia_smi.H200_CSV, "topo": fake_nvidia_smi.ONE_GPU_TOPOLOGY, "-q": fake_nvidia_smi.HEADER}
    fake_nvidia_smi.install_program(
        machine / "bin",
        "subprocess.Popen([sys.executable, '-IS', '-c', 'import time; time.sleep(300)'])\n"
        f"sys.stdout.write({answers!r}[query])\n",
    )
    begin = time.monotonic()
    assert len(collect_devices(30.0)) == 1
    assert time.monotonic() - begin < 60


def test_hung_topology_costs_the_topology_alone(machine: Path) -> None:
    answers = {"gpus": fake_nvidia_smi.eight_gpus_csv(), "-q": fake_nvidia_smi.HEADER}
    fake_nvidia_smi.install_program(
        machine / "bin",
        f"if query == 'topo': time.sleep(300)\nsys.stdout.write({answers!r}[query])\n",
    )
    driver, devices, topology, _ = collect_facts(2.0)
    assert isinstance(driver, Known) and isinstance(devices, Known) and len(devices.value) == 8
    assert isinstance(topology, Unreadable)


def test_garbage(machine: Path) -> None:
    fake_nvidia_smi.install_program(machine / "bin", "sys.stdout.buffer.write(bytes(range(256)) * 400)\n")
    driver, devices, *_ = collect_facts()
    assert isinstance(driver, Unreadable) and isinstance(devices, Absent)
    assert devices.reason.isprintable()


def test_a_flood_is_cut(machine: Path) -> None:
    fake_nvidia_smi.install_program(
        machine / "bin",
        "block = b'0, ' * 350000\nfor _ in range(100):\n    sys.stdout.buffer.write(block)\n",
    )
    devices = collect_facts()[1]
    assert isinstance(devices, Absent) and "wrote more than 4 MiB" in devices.reason


def test_a_program_that_cannot_run(machine: Path) -> None:
    fake_nvidia_smi.install_program(machine / "bin", "").write_text("#!/not/there\n")
    assert isinstance(collect_facts()[0], Unreadable)


def test_nothing_at_all() -> None:
    driver, devices, topology, problems = collect_facts()
    assert isinstance(driver, Absent) and isinstance(devices, Absent) and isinstance(topology, Absent)
    assert problems == ()


def test_proc_alone(machine: Path) -> None:
    card = machine / "proc" / "gpus" / "0000:1b:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 34\nGPU UUID: \t GPU-1\n")
    (machine / "proc" / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 2024\n"
    )
    driver, devices, *_ = collect_facts()
    assert isinstance(driver, Known) and driver.value.version == "535.161.08"
    assert isinstance(devices, Known) and devices.value[0].name == "NVIDIA H200"
    assert devices.value[0].sm == "sm_?"


def test_gpus_on_the_bus_without_a_driver(machine: Path) -> None:
    card = machine / "pci" / "0000:1b:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    devices = collect_facts()[1]
    assert isinstance(devices, Absent) and "on the PCI bus" in devices.reason


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
    assert visible_devices.visible_positions(setting, UUIDS, {"MIG-5c0f": 1}) == expected


def test_hidden_gpus_are_marked(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi.install_healthy(
        machine / "bin", gpus=fake_nvidia_smi.eight_gpus_csv(), topo=fake_nvidia_smi.nvswitch_topology()
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert [gpu.index for gpu in collect_devices() if gpu.visible] == [1, 3]


def test_mig_device_is_found_on_its_gpu(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000)\n"
        "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-10000000-0000)\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-5c0f1d6e-33aa-5d0f-a2f3-3f3f3f3f3f3f)\n"
    )
    fake_nvidia_smi.install_healthy(
        machine / "bin", gpus=fake_nvidia_smi.eight_gpus_csv(), topo=fake_nvidia_smi.nvswitch_topology(), listed=listed
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5c0f1d6e-33aa-5d0f-a2f3-3f3f3f3f3f3f")
    assert [gpu.index for gpu in collect_devices() if gpu.visible] == [1]


def test_all_three_questions_are_asked_at_once(machine: Path) -> None:
    answers: Any = {
        "gpus": fake_nvidia_smi.H200_CSV,
        "topo": fake_nvidia_smi.ONE_GPU_TOPOLOGY,
        "-q": fake_nvidia_smi.HEADER,
    }
    (machine / "asked").mkdir()
    fake_nvidia_smi.install_program(
        machine / "bin",
        f"asked = {str(machine / 'asked')!r}\n"
        "open(os.path.join(asked, query), 'w').close()\n"
        "while len(os.listdir(asked)) < 3:\n    time.sleep(0.01)\n"
        f"sys.stdout.write({answers!r}[query])\n",
    )
    assert len(collect_devices()) == 1, "each answers once the other two are asked"


def test_output_limit_leaves_room_for_real_machines() -> None:
    assert 100 * len(fake_nvidia_smi.nvswitch_topology()) < limits.OUTPUT_LIMIT
