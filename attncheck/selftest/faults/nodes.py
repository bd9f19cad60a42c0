"""Two nodes under srun, one of which is not like the other: two processes of doctor that meet over a port."""

from __future__ import annotations

import json
import zlib

from attncheck.selftest.faults import Family, Fault, Sandbox, nvidia
from attncheck.selftest.faults.job import setup_doctor
from attncheck.selftest.faults.nvidia import H200
from attncheck.selftest.faults.plugins import add_sitecustomize

SECOND = "node1.json"  # the variables in which node 1 differs
# Node 0's doctor starts node 1's, the same command, before it does anything else.
START_SECOND = """
import json, os, subprocess, sys
if os.environ.get("SLURM_NODEID") == "0" and "--nodes" in sys.orig_argv:
    with open(os.path.join({folder!r}, {name!r})) as stream:
        variables = json.load(stream)
    variables.update(SLURM_NODEID="1", SLURM_PROCID="1")
    null = subprocess.DEVNULL
    started = subprocess.Popen(sys.orig_argv, env={{**os.environ, **variables}}, stdin=null, stdout=null, stderr=null)
"""


def setup_nodes(sandbox: Sandbox) -> None:
    """Make the healthy environment, and have doctor examine it as two nodes of two GPUs each."""
    setup_doctor(sandbox)
    sandbox.arguments += ["--lane", "static", "--lane", "device", "--nodes", "--gpus-per-node", "2"]
    sandbox.arguments += ["--nodes-timeout", "60"]
    sandbox.environ |= {
        "SLURM_JOB_ID": str(zlib.crc32(str(sandbox.folder).encode())),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "localhost",
    }
    add_sitecustomize(sandbox, START_SECOND.format(folder=str(sandbox.folder), name=SECOND))
    _change_second(sandbox)


def _change_second(sandbox: Sandbox, **variables: str) -> None:
    sandbox.write_file(SECOND, json.dumps(variables))


def install_another_transformers(sandbox: Sandbox) -> None:
    """Put another transformers first on node 1's path."""
    metadata = "Metadata-Version: 2.1\nName: transformers\nVersion: 4.50.0\n"
    path = sandbox.write_file("other/transformers-4.50.0.dist-info/METADATA", metadata)
    _change_second(sandbox, PYTHONPATH=f"{path.parents[1]}:{sandbox.environ['PYTHONPATH']}")


def lose_gpu(sandbox: Sandbox) -> None:
    """Let node 1's nvidia-smi list one GPU less."""
    nvidia.install_nvidia_smi(sandbox.folder / "tools1", (H200,))
    _change_second(sandbox, PATH=f"{sandbox.folder / 'tools1'}:{sandbox.environ['PATH']}")


NODES = Family("nodes", "doctor over two healthy nodes, as srun starts it", setup_nodes, ("linux",))
FAULTS = (
    Fault(
        "node-of-another-transformers",
        NODES,
        ("ATN580",),
        "node 1 has transformers 4.50.0, node 0 has 4.57.6",
        "a node that was reinstalled alone",
        install_another_transformers,
        ("transformers", "4.50.0 on node 1"),
    ),
    Fault(
        "node-lost-a-gpu",
        NODES,
        ("ATN581",),
        "node 1 lists one GPU, and the job takes two of each node",
        "a GPU that fell off the bus",
        lose_gpu,
        ("1 GPU on node 1",),
    ),
)
