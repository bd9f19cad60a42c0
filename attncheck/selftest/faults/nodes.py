"""Two different nodes under srun: two doctor processes that meet over a port."""

import json
import zlib

from attncheck.selftest.faults import Family, Fault, Sandbox
from attncheck.selftest.faults.plugins import add_package, add_sitecustomize

SECOND = "node1.json"  # the variables that are different on node 1
# Node 0's doctor starts node 1's, with the same command, before it does anything else.
START_SECOND = """
import json, os, subprocess, sys
if os.environ.get("SLURM_NODEID") == "0" and "--nodes" in sys.orig_argv:
    with open(os.path.join({folder!r}, {name!r})) as stream:
        variables = json.load(stream)
    variables.update(SLURM_NODEID="1", SLURM_PROCID="1")
    null = subprocess.DEVNULL
    started = subprocess.Popen(sys.orig_argv, env={{**os.environ, **variables}}, stdin=null, stdout=null, stderr=null)
"""


def start_as_two_nodes(sandbox: Sandbox) -> None:
    """Make doctor run as two nodes, as srun starts them."""
    sandbox.arguments += ["--nodes", "--nodes-timeout", "60"]
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
    change_second(sandbox)


def change_second(sandbox: Sandbox, **variables: str) -> None:
    """Set variables on node 1 only."""
    sandbox.write_file(SECOND, json.dumps(variables))


def setup_nodes(sandbox: Sandbox) -> None:
    """Put a transformers package first on the path of both nodes, and make doctor compare their files."""
    add_package(sandbox, "transformers", "4.57.6")
    sandbox.arguments += ["doctor", "--python", sandbox.python, "--lane", "static", "--format", "json"]
    start_as_two_nodes(sandbox)


def install_another_transformers(sandbox: Sandbox) -> None:
    """Put another transformers package first on node 1's path."""
    path = sandbox.environ["PYTHONPATH"]
    folder = add_package(sandbox, "transformers", "4.50.0", folder="other")
    change_second(sandbox, PYTHONPATH=f"{folder}:{path}")
    sandbox.environ["PYTHONPATH"] = path


FAULTS = (
    Fault(
        "node-of-another-transformers",
        Family("nodes", "doctor on two identical nodes, as srun starts it", setup_nodes, ("linux",)),
        ("ATN580",),
        "node 1 has transformers 4.50.0, node 0 has 4.57.6",
        "a node that was reinstalled separately",
        install_another_transformers,
        ("transformers", "4.50.0 on node 1"),
    ),
)
