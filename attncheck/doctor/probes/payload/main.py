"""The payload's entry point: one call, one JSON answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from .facts import absent, describe_error, known, unreadable


def call(name: str, request: dict[str, Any]) -> dict[str, object]:
    """Return the answer to `name` ("static", "imports", "confirm", "device" or "driver") without private names."""
    from .privacy import scrub

    sys.path[0:0] = [str(folder) for folder in request.get("packages", ())]  # in a child: to try other versions
    collectors = {
        "static": collect_static_facts,
        "imports": collect_import_facts,
        "confirm": confirm_breaks,
        "device": collect_device_facts,
        "driver": run_driver_kernels,
    }
    answer: dict[str, object] = collectors[name](request)
    cleaned: dict[str, object] = scrub(answer)
    return cleaned


def collect_static_facts(request: dict[str, Any]) -> dict[str, object]:
    """Return everything that can be read from files, without an import or a GPU."""
    from . import environ, host, hub
    from .binaries import binaries, builds, runtime, torch_files
    from .packages import archives, build_tools, distributions

    problems: list[str] = []
    lost: list[str] = []
    site_dirs = site_directories()
    installed, clashes, shadows = _collect_section(
        lost,
        "distributions",
        lambda: distributions.collect_distributions(site_dirs, bool(request.get("requirements"))),
        ([], [], []),
    )
    torch = _collect_section(
        lost, "torch", lambda: torch_files.collect_torch_build(site_dirs), unreadable("reading torch failed")
    )
    archived = archives.find_archived()
    problems += ["%s is in the archive %s, which is not examined" % item for item in archived.items()]
    if "torch" in archived and "absent" in torch:
        torch = unreadable("torch is in the archive %s, which is not examined" % archived["torch"])
    answer: dict[str, Any] = {
        "host": host.collect_host(),
        "build_tools": _collect_section(
            lost, "build tools", lambda: build_tools.collect_build_tools(site_dirs), build_tools.UNREADABLE_TOOLS
        ),
        "clashes": clashes,
        "shadows": shadows,
        "torch": torch,
        "binaries": _collect_section(
            lost, "binaries", lambda: binaries.collect_binaries(installed, site_dirs, problems), []
        ),
        "runtime_libraries": _collect_section(
            lost, "runtime libraries", lambda: runtime.collect_runtime_libraries(site_dirs), []
        ),
        "builds": _collect_section(lost, "builds", lambda: builds.collect_builds(site_dirs), []),
        "hub": _collect_section(lost, "hub cache", hub.collect_hub_cache, {"offline": False, "kernels": []}),
        "environ": environ.collect_variables(),
        "model": absent("no model was named"),
        "problems": problems,
        "lost": lost,
    }
    _collect_section(lost, "extensions", lambda: _find_missing_modules(installed, site_dirs), None)
    answer["distributions"] = [
        {key: value for key, value in distribution.items() if not key.startswith("_")} for distribution in installed
    ]
    if request.get("stamps"):
        from .packages import stamps

        answer["stamps"] = stamps.digest_stamps(installed, site_dirs, request["stamps"] == "all")
    answer["links"] = absent("this lane was not requested")
    if request.get("links", True):
        answer["links"] = _collect_section(
            lost, "links", lambda: known(_collect_links(installed, site_dirs, request)), unreadable("reading failed")
        )
    model = request.get("model")
    if isinstance(model, str):
        answer["model"] = _collect_section(
            lost, "model", lambda: _collect_model(model, request), unreadable("reading it failed")
        )
        if "known" in answer["model"] and request.get("documents") is None:
            answer["model"]["known"]["links"] = _collect_section(
                lost, "model's code", lambda: known(_link_model(model, installed, site_dirs)), unreadable("it failed")
            )
    return answer


def collect_import_facts(request: dict[str, Any]) -> dict[str, object]:
    """Return how importing each installed package of the attention stack ended, and facts from inside."""
    from .imports import lane
    from .packages import distributions

    installed = distributions.collect_distributions(site_directories())[0]
    transformers_queries: dict[str, Callable[[], Any]] = {}
    model = request.get("model")
    if isinstance(model, str):
        transformers_queries["model"] = lambda: _query_attention_support(model, request)
    answer = lane.run_import_lane(
        installed, _deadline_seconds(request), transformers_queries, _gpu_queries() if request.get("kernels") else {}
    )
    return {**answer, "imports": known(answer["imports"]), "interfaces": known(answer["interfaces"])}


def confirm_breaks(request: dict[str, Any]) -> dict[str, object]:
    """Return how importing the requested modules ended, which the linker considers broken."""
    from .imports import lane
    from .packages import distributions

    installed = distributions.collect_distributions(site_directories())[0]
    modules = [str(name) for name in request.get("modules", ())]
    return {"outcomes": lane.confirm_imports(installed, modules, _deadline_seconds(request))}


def collect_device_facts(request: dict[str, Any]) -> dict[str, object]:
    """Return the driver, the GPUs and their links, without torch."""
    from .gpus import nvidia_smi

    return nvidia_smi.collect_gpus(_deadline_seconds(request))


def run_driver_kernels(request: dict[str, Any]) -> dict[str, object]:
    """Return on how many GPUs, which are all visible ones, the driver runs a kernel. Raises `OSError` if one fails."""
    from .gpus import driver

    return {"kernels": driver.run_kernels()}


def site_directories() -> list[str]:
    """Return the directories of sys.path except the working directory, which is not part of the environment."""
    cwd = os.getcwd() if os.path.isdir(".") else ""
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders: list[str] = []
    for entry in sys.path:
        if entry and entry not in folders and os.path.isdir(entry) and (entry != cwd or entry in python_path):
            folders.append(entry)
    return folders


def _deadline_seconds(request: dict[str, Any]) -> float:
    seconds = request.get("seconds")
    return float(seconds) if isinstance(seconds, (int, float)) else 60.0


def _collect_links(
    installed: list[dict[str, Any]], site_dirs: list[str], request: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the names that the installed packages import from each other and that no longer exist."""
    from .links import interface

    folder = request.get("cache")
    return interface.link_installed(
        installed, site_dirs, folder if isinstance(folder, str) else "", str(request.get("release", ""))
    )


def _find_missing_modules(installed: list[dict[str, Any]], site_dirs: list[str]) -> None:
    """Record in the compiled distributions the modules that they import and no file provides."""
    from .links import extensions

    extensions.find_missing_modules(installed, site_dirs)


def _link_model(model: str, installed: list[dict[str, Any]], site_dirs: list[str]) -> list[dict[str, Any]]:
    """Return the names that a model's own code imports from the installed packages and that no longer exist."""
    from .links import interface

    return interface.link_model(model, installed, site_dirs)


def _collect_model(source: str, request: dict[str, Any]) -> object:
    from .model import config

    return config.collect_model(source, request.get("documents"))


def _gpu_queries() -> dict[str, Callable[[], Any]]:
    """Return one tiny kernel for each GPU that the driver shows, and the query for peer access."""
    from functools import partial

    from . import files
    from .gpus import kernels

    device_files = [name for name in files.list_folder("/dev") if name.startswith("nvidia") and name[6:].isdecimal()]
    if not device_files and os.path.exists("/dev/dxg"):  # WSL shows its GPUs as one device
        device_files = ["dxg"]
    queries: dict[str, Callable[[], Any]] = {
        "gpu %d" % ordinal: partial(kernels.run_kernel, ordinal) for ordinal in range(len(device_files))
    }
    if len(device_files) > 1:
        queries["peers"] = kernels.check_peer_access
    return queries


def _query_attention_support(source: str, request: dict[str, Any]) -> object:
    from .model import accepts

    return accepts.query_attention_support(source, request.get("documents"))


def _collect_section(lost: list[str], name: str, collect: Callable[[], Any], fallback: Any) -> Any:
    try:
        return collect()
    except Exception as error:  # a damaged environment must affect one section, not the whole answer
        lost.append(name + ": " + describe_error(error))
        return fallback
