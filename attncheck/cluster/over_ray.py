"""Examines the nodes of a Ray cluster: a driver in a child process with ray runs the probe as a task on each node."""

import base64
import json
import re
import socket
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attncheck.cluster.merge import GatheredNodes
from attncheck.cluster.packing import pack_snapshot
from attncheck.core.environment import Selection
from attncheck.core.io.errors import AttncheckError, BadUsage, Unanswered
from attncheck.core.io.files import read_named
from attncheck.doctor.probes import bundle
from attncheck.doctor.probes.collect import Lane, join_answers, list_calls, make_request
from attncheck.doctor.probes.payload.privacy import scrub
from attncheck.workers.child import BOOTSTRAP, Child, ChildResult, require_answer, wait_for_children
from attncheck.workers.process import CHILD_ENVIRONMENT

PACKAGE = "attncheck_ray"
GRACE_SECONDS = 60.0  # time for the driver to import ray, to connect to the cluster, and to stop unfinished tasks
CONNECT_SECONDS = 5.0
MAX_BYTES = 4 << 20  # limit for a runtime environment
NAME_LENGTH = 12  # characters of a node's id that are kept
# Addresses that would start a new cluster here are refused.
ADDRESS = re.compile(r"auto|(ray://)?[^\s/:]+:\d{1,5}|(ray://)?\[[0-9a-fA-F:]+\]:\d{1,5}")
HOST = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\bray://\S+|\bip=\S+")
INSTALL = (
    "install the cluster's version of ray next to attncheck (attncheck[ray]), or name an "
    "environment that has it with --python"
)
WORKER = Selection("ray")


@dataclass(frozen=True)
class RayCluster:
    """The Ray cluster to examine. `python` has ray and runs the driver; nodes use their own interpreters."""

    address: str
    runtime_env: Mapping[str, Any]
    python: str


def read_runtime_env(text: str | None) -> dict[str, Any]:
    """Return a runtime environment from JSON text, or from a JSON or YAML file. Raises `BadUsage`."""
    if text is None:
        return {}
    content = text if text.lstrip().startswith("{") else read_named(text, MAX_BYTES).decode("utf-8", "replace")
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        value = json.loads(content) if content.lstrip().startswith("{") else YAML(typ="safe", pure=True).load(content)
    except (ValueError, RecursionError, YAMLError) as error:
        raise BadUsage(f"--ray-runtime-env is neither JSON nor YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadUsage('--ray-runtime-env is not a mapping, such as {"pip": ["transformers==5.17.0"]}')
    return value


def check_address(address: str) -> str:
    """Return an address in the form that ray.init accepts. Raises `BadUsage` if it does not name a running cluster."""
    if not ADDRESS.fullmatch(address):
        raise BadUsage("--ray takes auto, HOST:PORT or ray://HOST:PORT of a running cluster (`ray start`)")
    return address


def gather_ray(
    cluster: RayCluster,
    lanes: Sequence[Lane],
    model: str | None,
    import_seconds: float,
    seconds: float,
    report_progress: Callable[[str], None] = lambda text: None,
) -> GatheredNodes:
    """Return the results of all nodes of a cluster within `seconds`; `import_seconds` is the deadline of one import.

    Raises `Unanswered` if ray is not installed, or the cluster cannot be reached.
    """
    probe = make_request(lanes, model, None, import_seconds)
    request: dict[str, object] = {
        "address": cluster.address,
        "runtime_env": dict(cluster.runtime_env),
        "seconds": seconds,
        "bootstrap": BOOTSTRAP,
        "messages": {name: bundle.build_message(name, probe) for name in list_calls(lanes)},
        "environ": CHILD_ENVIRONMENT,
    }
    source = Path(__file__).with_name("ray_driver.py").read_text(encoding="utf-8")
    message = {
        "package": PACKAGE,
        "sources": {PACKAGE: "", f"{PACKAGE}.main": source},
        "call": "ray",
        "request": request,
    }
    report_progress("examining the nodes of the Ray cluster")
    _check_listening(cluster.address)
    child = Child(cluster.python, "ray", message)
    result = wait_for_children([child], time.monotonic() + seconds + GRACE_SECONDS)["ray"]
    if result.answer is None:
        raise Unanswered(f"the Ray cluster did not respond: {clean_reason(result.describe_failure())}")
    answer = require_answer(result, cluster.python)
    if "missing" in answer:
        raise Unanswered(f"ray cannot be imported ({answer['missing']}): {INSTALL}")
    if "failure" in answer:
        raise Unanswered(f"ray {answer.get('ray')} cannot reach the cluster: {clean_reason(str(answer['failure']))}")
    return unpack_nodes(answer)


def _check_listening(address: str) -> None:
    """Raise `Unanswered` if nothing listens at an address: ray itself would retry for a minute and a half."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unanswered(f"the address given to --ray did not respond: {reason}") from None


def unpack_nodes(answer: Mapping[str, Any]) -> GatheredNodes:
    """Return the driver's answers: a document for each node, or why it has none."""
    documents, silent, gpus = {}, {}, {}
    for number, node in enumerate(answer["nodes"]):
        gpus[number] = int(node["gpus"])
        if "packed" not in node:
            silent[number] = clean_reason(str(node.get("failure", "no answer")))
            continue
        try:
            answers = json.loads(zlib.decompress(base64.b64decode(node["packed"])))
            results = {name: read_result(content) for name, content in answers.items()}
            documents[number] = pack_snapshot(join_answers(results, WORKER))
        except AttncheckError as error:
            silent[number] = str(error)
    names = tuple(str(node["id"])[:NAME_LENGTH] for node in answer["nodes"])
    return GatheredNodes("Ray", len(names), documents, silent, names, gpus)


def read_result(content: Mapping[str, Any]) -> ChildResult:
    """Return the outcome of one call of the probe on a node."""
    if "answer" in content:
        return ChildResult("ok", content["answer"])
    return ChildResult(content["outcome"], None, int(content["returncode"] or 0))


def clean_reason(text: str) -> str:
    """Return a reason from elsewhere on one line, without addresses of hosts."""
    return HOST.sub("…", str(scrub(" ".join(text.split()))))
