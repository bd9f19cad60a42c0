"""Answers the calls of the examining side: one call, one JSON answer."""

from __future__ import annotations

import os
import sys

from .facts import absent, failure, known, unreadable

TYPE_CHECKING = False  # typing itself costs more to import than this module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def call(name: str, request: dict[str, Any]) -> dict[str, object]:
    """Return the answer to `name`, one of "static", "imports" and "device", clean of private names."""
    from .privacy import scrub

    answer: dict[str, object] = {"static": static, "imports": imports, "device": device}[name](request)
    cleaned: dict[str, object] = scrub(answer)
    return cleaned


def static(request: dict[str, Any]) -> dict[str, object]:
    """Return everything that can be read from files: no import, no GPU."""
    from . import environ, host, hub
    from .binaries import binaries
    from .packages import build_tools, distributions, torch_files

    problems: list[str] = []
    site_dirs = site_directories()
    found, clashes, shadows = _section(problems, "distributions", lambda: distributions.look(site_dirs), ([], [], []))
    torch = _section(problems, "torch", lambda: torch_files.look(site_dirs), unreadable("reading torch failed"))
    answer: dict[str, object] = {
        "host": host.look(),
        "build_tools": _section(problems, "build tools", lambda: build_tools.look(site_dirs), build_tools.NOTHING),
        "clashes": clashes,
        "shadows": shadows,
        "torch": torch,
        "binaries": _section(problems, "binaries", lambda: binaries.look(found, site_dirs, problems), []),
        "hub": _section(problems, "hub cache", hub.look, {"offline": False, "kernels": []}),
        "environ": environ.look(),
        "model": absent("no model was named"),
        "problems": problems,
    }
    answer["distributions"] = [{key: value for key, value in item.items() if not key.startswith("_")} for item in found]
    model = request.get("model")
    if isinstance(model, str):
        answer["model"] = _section(problems, "model", lambda: _model(model, request), unreadable("reading it failed"))
    return answer


def imports(request: dict[str, Any]) -> dict[str, object]:
    """Return how importing each installed package of the attention stack ended, and facts from inside."""
    from .imports import lane
    from .packages import distributions

    found = distributions.look(site_directories())[0]
    questions: dict[str, Callable[[], Any]] = {}
    model = request.get("model")
    if isinstance(model, str):
        questions["model"] = lambda: _accepts(model, request)
    answer = lane.look(found, _seconds(request), questions, _gpu_questions() if request.get("kernels") else {})
    return {**answer, "imports": known(answer["imports"]), "interfaces": known(answer["interfaces"])}


def device(request: dict[str, Any]) -> dict[str, object]:
    """Return the driver, the GPUs and their links, without torch."""
    from .gpus import nvidia_smi

    return nvidia_smi.look(_seconds(request))


def site_directories() -> list[str]:
    """Return the directories of sys.path, less the working directory, which is not part of the environment."""
    here = os.getcwd() if os.path.isdir(".") else ""
    wanted = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found: list[str] = []
    for entry in sys.path:
        if entry and entry not in found and os.path.isdir(entry) and (entry != here or entry in wanted):
            found.append(entry)
    return found


def _seconds(request: dict[str, Any]) -> float:
    seconds = request.get("seconds")
    return float(seconds) if isinstance(seconds, (int, float)) else 60.0


def _model(source: str, request: dict[str, Any]) -> object:
    from .model import config

    return config.look(source, request.get("documents"))


def _gpu_questions() -> dict[str, Callable[[], Any]]:
    """Return one tiny kernel for each GPU that the driver shows, and the question who can reach whom."""
    from functools import partial

    from . import files
    from .gpus import kernels

    places = [name for name in files.names("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    if not places and os.path.exists("/dev/dxg"):  # WSL shows its GPUs as one device
        places = ["dxg"]
    questions: dict[str, Callable[[], Any]] = {
        "gpu %d" % ordinal: partial(kernels.run_one, ordinal) for ordinal in range(len(places))
    }
    if len(places) > 1:
        questions["peers"] = kernels.peers
    return questions


def _accepts(source: str, request: dict[str, Any]) -> object:
    from .model import accepts

    return accepts.accepts(source, request.get("documents"))


def _section(problems: list[str], name: str, look: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return look()
    except Exception as error:  # a damaged environment must cost one section, not the report
        problems.append(name + ": " + failure(error))
        return otherwise
