"""Takes a snapshot of an environment: runs the payload's lanes, joins their answers, and parses the result."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from attncheck import __version__
from attncheck.core import codec
from attncheck.core.environment import NOT_RECORDED, Selection
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.io.private_folder import cache_folder
from attncheck.core.snapshot import SCHEMA_VERSION, Snapshot
from attncheck.doctor.probes import bundle, keeping
from attncheck.doctor.probes.payload.joining import LANE_CALLS, join_lanes
from attncheck.doctor.probes.payload.links.suspects import find_suspects
from attncheck.doctor.probes.payload.privacy import scrub
from attncheck.workers.child import Child, ChildResult, require_answer, wait_for_children
from attncheck.workers.process import kill_all

Lane = Literal["static", "import", "device"]
LANES: tuple[Lane, ...] = get_args(Lane)
GRACE_SECONDS = 15.0  # on top of one import's deadline, for starting up and for stopping a process that hangs


def collect_snapshot(
    python: str | None = None,
    lanes: tuple[Lane, ...] = LANES,
    model: str | None = None,
    documents: dict[str, str] | None = None,
    seconds: float = 60.0,
    report_progress: Callable[[str], None] = lambda text: None,
    selection: Selection = NOT_RECORDED,
    packages: tuple[str, ...] = (),
    requirements: bool = False,
    keeps_imports: bool = False,
    links: bool = True,
) -> Snapshot:
    """Return the facts that `lanes` collect in the environment of `python` (None: the interpreter of attncheck).

    `documents` maps the names of a model's files to their text, if they were already read. `seconds` is the deadline of
    one import, `selection` the reason this interpreter is examined. `packages` are folders whose packages take
    precedence over the environment's, in child processes only. With `requirements`, the requirements of every package
    are read, not only those of the attention stack. Without `links`, names that no longer exist are not searched for.
    If it `keeps_imports`, the import lane's answers may be those of an earlier run in the same environment
    (`keeping`). Raises `BadUsage` for an interpreter that cannot be examined and
    `Unanswered` if the static lane does not answer.
    """
    request: dict[str, object] = {"model": model, "documents": documents, "seconds": seconds}
    if packages:
        request["packages"] = list(packages)
    if requirements:
        request["requirements"] = True
    if not links:
        request["links"] = False
    try:
        examined = python or sys.executable if packages or keeps_imports else python
        document = _collect_document(examined, lanes, request, seconds, report_progress, keeps_imports)
    except BadUsage as error:
        if python is None or not selection.is_notable:
            raise
        raise BadUsage(str(error).replace(python, f"{python}, {selection.reason},", 1)) from None
    return _parse_snapshot(document, selection)


def make_request(
    lanes: Sequence[Lane], model: str | None, documents: dict[str, str] | None, seconds: float
) -> dict[str, object]:
    """Return the payload's request for another machine, which has no cache."""
    return {
        "model": model,
        "documents": documents,
        "seconds": seconds,
        "kernels": "device" in lanes,
        "cache": "",
        "release": __version__,
    }


def list_calls(lanes: Sequence[Lane]) -> tuple[str, ...]:
    """Return the payload's calls that these lanes make; the static call is always made."""
    return ("static", *(LANE_CALLS[lane] for lane in LANES if lane in lanes and lane in LANE_CALLS))


def join_answers(results: dict[str, ChildResult], selection: Selection = NOT_RECORDED) -> Snapshot:
    """Return the snapshot that another machine's answers, by call, describe.

    Raises `BadUsage` or `Unanswered` if the static lane did not answer.
    """
    static = require_answer(results["static"], "its interpreter")
    return _parse_snapshot(_join_lanes(static, results), selection)


def collect_with_stamps(python: str | None, seconds: float) -> tuple[Snapshot, str]:
    """Return the static lane's snapshot, and a digest that changes with any module of the installed packages.

    Raises the same exceptions as `collect_snapshot`.
    """
    document = _collect_document(python, ("static",), {"stamps": True}, seconds, lambda text: None)
    stamps = str(document.pop("stamps"))
    return _parse_snapshot(document), stamps


def _collect_document(
    python: str | None,
    lanes: tuple[Lane, ...],
    request: dict[str, object],
    seconds: float,
    report_progress: Callable[[str], None],
    keeps_imports: bool = False,
) -> dict[str, Any]:
    """Return the answers of all lanes, joined."""
    request["kernels"] = "device" in lanes
    request["cache"] = str(cache_folder(os.environ) or "")
    request["release"] = __version__
    interpreter = python or sys.executable
    calls = [LANE_CALLS[lane] for lane in LANES if lane in lanes and lane in LANE_CALLS]
    try:
        if python is not None:  # on its own and first: an unusable interpreter must not look like a lost lane
            report_progress("reading files")
            static_request = {**request, "stamps": "all"} if keeps_imports else request
            child = Child(python, "static", bundle.build_message("static", static_request))
            static = require_answer(wait_for_children([child], time.monotonic() + seconds)["static"], python)
        kept_file = None
        if keeps_imports and "import" in lanes:
            kept_file = keeping.find_kept_file(str(static.pop("stamps")), request, interpreter)
        kept = keeping.read_kept(kept_file)
        gpus = keeping.count_gpus(kept)
        if gpus and _run_driver_kernels(interpreter, request, seconds) != gpus:
            kept = {}  # a GPU has failed since
        children = [Child(interpreter, call, bundle.build_message(call, request)) for call in calls if call not in kept]
        if python is None:
            from attncheck.doctor.probes.payload import main

            report_progress("reading files")
            static = main.call("static", request)
        if calls:
            report_progress("importing packages, querying the driver")
        suspects = find_suspects(static) if "import" in lanes and not kept else []
        if suspects:
            message = bundle.build_message("confirm", {**request, "modules": suspects})
            children.append(Child(interpreter, "confirm", message))
        results = wait_for_children(children, time.monotonic() + seconds + GRACE_SECONDS)
    finally:
        kill_all()
    if not kept:
        keeping.keep(kept_file, results)
    return _join_lanes(static, {**results, **kept})


def _run_driver_kernels(interpreter: str, request: dict[str, object], seconds: float) -> object:
    """Return on how many GPUs the driver runs a kernel now, None if one fails."""
    child = Child(interpreter, "driver", bundle.build_message("driver", request))
    answer = wait_for_children([child], time.monotonic() + seconds)["driver"].answer
    return answer.get("kernels") if isinstance(answer, dict) else None


def _join_lanes(static: dict[str, Any], results: dict[str, ChildResult]) -> dict[str, Any]:
    answers = {
        call: result.answer if isinstance(result.answer, dict) else result.describe_failure()
        for call, result in results.items()
    }
    return join_lanes(static, answers)


def _parse_snapshot(document: dict[str, Any], selection: Selection = NOT_RECORDED) -> Snapshot:
    document["host"]["selection"] = scrub(codec.to_plain(selection))
    document.update(
        attncheck=__version__,
        taken=time.strftime("%Y-%m-%d", time.gmtime()),
        schema_version=SCHEMA_VERSION,
    )
    try:
        return codec.read(Snapshot, document)
    except codec.BadDocument as error:
        raise Unanswered(f"cannot read the probe's result: {error}") from None
