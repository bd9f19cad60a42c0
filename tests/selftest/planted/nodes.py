"""Two nodes of stubs under srun, one of which has fewer GPUs."""

from __future__ import annotations

from attncheck.selftest.faults import Family, Fault, Sandbox
from attncheck.selftest.faults.nodes import change_second, start_as_two_nodes
from tests.selftest.planted import nvidia
from tests.selftest.planted.job import setup_doctor
from tests.selftest.planted.nvidia import H200


def setup_nodes(sandbox: Sandbox) -> None:
    """Make the healthy environment, and have doctor examine it as two nodes of two GPUs each."""
    setup_doctor(sandbox)
    sandbox.arguments += ["--lane", "static", "--lane", "device", "--gpus-per-node", "2"]
    start_as_two_nodes(sandbox)


def lose_gpu(sandbox: Sandbox) -> None:
    """Let node 1's nvidia-smi list one GPU less."""
    nvidia.install_nvidia_smi(sandbox.folder / "tools1", (H200,))
    change_second(sandbox, PATH=f"{sandbox.folder / 'tools1'}:{sandbox.environ['PATH']}")


FAULTS = (
    Fault(
        "node-lost-a-gpu",
        Family("nodes of stubs", "doctor over two healthy nodes, as srun starts it", setup_nodes, ("linux",)),
        ("ATN581",),
        "node 1 lists one GPU, and the job takes two of each node",
        "a GPU that fell off the bus",
        lose_gpu,
        ("1 GPU on node 1",),
    ),
)
