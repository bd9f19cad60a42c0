"""Runs as a driver in an interpreter that has ray, and starts one task on each node, which runs the probe there.

It is sent as source (`over_ray.py`) and imports nothing from attncheck. A task is pinned to its node and uses no
resource, so that it runs next to the cluster's other work (ray 2.60.0 util/scheduling_strategies.py,
`NodeAffinitySchedulingStrategy`; `num_cpus=0`). The probe runs in children of the task, with the worker's interpreter:
the node's own, or that of the runtime environment.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from typing import Any

HEAD = "node:__internal_head__"  # the resource that Ray gives to the head node
TICK_SECONDS = 0.5
# A child ends with its task, so that a killed worker leaves nothing behind (prctl(2), PR_SET_PDEATHSIG).
PRELUDE = """\
import sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
    del ctypes
"""


def call(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of all nodes, or why the cluster cannot be reached."""
    deadline = time.monotonic() + request["seconds"]
    try:
        import ray
    except ImportError as error:
        return {"missing": str(error)}
    try:
        ray.init(
            address=request["address"],
            runtime_env=request["runtime_env"] or None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (Exception, SystemExit) as error:
        return {"failure": describe(error), "ray": ray.__version__}
    try:
        return {"nodes": examine_nodes(ray, request, deadline), "ray": ray.__version__}
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()


def examine_nodes(ray: Any, request: dict[str, Any], deadline: float) -> list[dict[str, Any]]:
    """Return the answer of each live node, the head first; tasks unfinished at `deadline` are stopped."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes have no module of this name
    alive = [node for node in ray.nodes() if node["Alive"]]
    alive.sort(key=lambda node: (HEAD not in node["Resources"], node["NodeID"]))
    task = ray.remote(num_cpus=0, max_retries=0)(examine)
    nodes, tasks = [], {}
    for index, node in enumerate(alive):
        nodes.append({"id": node["NodeID"], "gpus": int(node["Resources"].get("GPU", 0))})
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        reference = task.options(scheduling_strategy=strategy).remote(
            request["bootstrap"], request["messages"], request["environ"], max(1.0, deadline - time.monotonic())
        )
        tasks[reference] = index
    while tasks and time.monotonic() < deadline:
        ready, _ = ray.wait(list(tasks), num_returns=1, timeout=TICK_SECONDS)
        for reference in ready:
            node = nodes[tasks.pop(reference)]
            try:
                node["packed"] = ray.get(reference, timeout=TICK_SECONDS)
            except Exception as error:
                node["failure"] = describe(error)
    for reference, index in tasks.items():
        nodes[index]["failure"] = f"it did not respond within {request['seconds']:.0f} s"
        with contextlib.suppress(Exception):
            ray.cancel(reference, force=True)
    return nodes


def examine(bootstrap: str, messages: dict[str, Any], environ: dict[str, str], seconds: float) -> str:
    """Return the answers of the probe's calls, packed; each call is a child of this task with the same deadline."""
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        children = {name: start_child(name, bootstrap, message, environ, folder) for name, message in messages.items()}
        answers = {name: read_child(child, deadline) for name, child in children.items()}
    return base64.b64encode(zlib.compress(json.dumps(answers).encode(), 6)).decode()


def start_child(
    name: str, bootstrap: str, message: Any, environ: dict[str, str], folder: str
) -> tuple[subprocess.Popen[bytes], Any]:
    """Return a child that runs one call of the probe, and the file for its answer; its message is in a file."""
    variables = visible_environment()
    if name != "static":
        caches = {"TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        variables.update({**environ, **caches})
    answer = tempfile.TemporaryFile()  # noqa: SIM115 - the reader closes it
    with tempfile.TemporaryFile() as source:
        source.write(json.dumps(message).encode())
        source.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-B", "-c", PRELUDE + bootstrap],
            stdin=source,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            env=variables,
            cwd=os.sep,
            start_new_session=True,
        )
    return child, answer


def read_child(started: Any, deadline: float) -> dict[str, Any]:
    """Return a child's answer, or how it ended without one; its process group is killed."""
    child, stream = started
    timed_out = False
    try:
        child.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    with stream:
        stream.seek(0)
        try:
            return {"answer": json.load(stream)}
        except ValueError:
            return {"outcome": "timed_out" if timed_out else "died", "returncode": child.returncode}


def visible_environment() -> dict[str, str]:
    """Return the variables that a job's process would have here: with the GPUs that the raylet sees.

    Ray hides all GPUs from a task that requests none (ray 2.60.0 _private/accelerators/nvidia_gpu.py), and starts
    workers as children of the raylet.
    """
    variables = dict(os.environ)
    raylet = {}
    with contextlib.suppress(OSError), open(f"/proc/{os.getppid()}/environ", "rb") as stream:
        entries = (entry.partition(b"=") for entry in stream.read().split(b"\0") if b"=" in entry)
        raylet = {os.fsdecode(name): os.fsdecode(text) for name, _, text in entries}
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if variables.get(name) in ("", "NoDevFiles"):
            del variables[name]
            if name in raylet:
                variables[name] = raylet[name]
    return variables


def describe(error: BaseException) -> str:
    """Return an error in one line: its type, and the most informative lines of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[:1] + lines[-1:] if len(lines) > 1 else lines
    return ": ".join([type(error).__name__, *dict.fromkeys(said)])[:400]
