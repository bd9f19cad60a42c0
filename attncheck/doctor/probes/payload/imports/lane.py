"""The import lane: imports the attention stack, each module in its own process, and collects facts there.

torch is imported once, transformers once on top of it, and every other module in a fork of the process that has its
prerequisites. In total this takes little longer than the slowest import. See `processes/supervisor.py` for how it
handles imports that crash, hang or leave processes behind.
"""

from __future__ import annotations

import os
import re
import sys

from ..facts import describe_error, known, unreadable
from ..processes.job import Job
from . import child, introspect, liger, plan
from .plan import MODELING, TORCH, TRANSFORMERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Mapping

    from ..processes.forking import Message, Send
    from .plan import PlannedImport

    Query = Callable[[], Any]

MODULE_QUERIES: dict[str, Query] = {
    "flash_attn": introspect.collect_flash_attn_facts,
    "liger_kernel.transformers": liger.collect_liger_facts,
}
TORCH_FIELDS = ("arch_list", "cudnn", "nccl", "cuda_available", "cuda_error", "sdpa_switches")
INTERFACE_SOURCES = {
    "unpad_input_arity": "flash_attn",
    "liger_model_types": "liger_kernel.transformers",
    "liger_missing_targets": "liger_kernel.transformers",
    "attention_functions": TRANSFORMERS,
    "mask_functions": TRANSFORMERS,
    "kernel_fallbacks": TRANSFORMERS,
}
# On other systems (macOS), libraries with running threads do not survive a fork, so each import starts in a new
# process.
SHARES_IMPORTS = sys.platform.startswith("linux")


def run_import_lane(
    distributions: Iterable[str | Mapping[str, Any]],
    deadline: float,
    transformers_queries: Mapping[str, Query] | None = None,
    torch_queries: Mapping[str, Query] | None = None,
) -> dict[str, Any]:
    """Return "imports", "torch" (its second block), "interfaces", "answers" and "lost" (what could not be done).

    It takes about `deadline` seconds at most.

    `distributions` are names, or records with a "name". `transformers_queries` are further functions to call if
    transformers is imported, `torch_queries` if only torch is. Each runs in its own child, and its answer, a fact, is
    returned under its name in "answers".
    """
    installed = {_normalise_name(distribution) for distribution in distributions}
    queries = {name: (TRANSFORMERS, query) for name, query in (transformers_queries or {}).items()}
    queries.update((name, (TORCH, query)) for name, query in (torch_queries or {}).items())
    imports = plan.select_imports(installed)
    reason = "" if hasattr(os, "fork") else "modules cannot be imported safely here: this system cannot fork"
    records: dict[str, Message] = {}
    lost: list[str] = []
    if imports and not reason:
        from ..processes import supervision

        try:
            records = supervision.run_jobs(_build_jobs(imports, queries), deadline)
        except OSError as error:
            reason = describe_error(error)
            lost = ["import lane: " + reason]
        lost += _list_lost(records)
    outcomes = [_read_outcome(planned.module, records.get(planned.module), reason) for planned in imports]
    outcomes += [
        child.make_outcome(name, "skipped", 0.0, message=name + " is not installed")
        for name in (TORCH, TRANSFORMERS)
        if name not in installed
    ]
    by_module = {outcome["module"]: outcome for outcome in outcomes}
    return {
        "imports": outcomes,
        "torch": _read_torch_facts(records, by_module),
        "interfaces": _read_interfaces(records, by_module),
        "lost": lost,
        "answers": {name: _read_answer(records.get("ask " + name), by_module, queries[name][0]) for name in queries},
    }


def confirm_imports(
    distributions: Iterable[str | Mapping[str, Any]], modules: list[str], deadline: float
) -> list[dict[str, Any]]:
    """Return how importing each of `modules` ended, each in its own process on top of torch and transformers."""
    if not hasattr(os, "fork"):
        return []
    from ..processes import supervision

    installed = {_normalise_name(distribution) for distribution in distributions}
    imports = [planned for planned in plan.select_imports(installed) if planned.is_fork_server]
    suspects = [plan.PlannedImport(module, (), MODELING) for module in modules]
    try:
        records = supervision.run_jobs(_build_jobs([*imports, *suspects], {}), deadline)
    except OSError:
        return []
    return [_read_outcome(module, records.get(module), "") for module in modules]


def _list_lost(records: Mapping[str, Message]) -> list[str]:
    """Return the imports without a result that no package caused, and the queries whose process was lost."""
    lost = []
    for name, record in records.items():
        if record["end"] == "lost":
            lost.append("import lane: %s: %s" % (name, record["why"]))
        elif record["end"] in ("died", "hung") and name.startswith(("ask ", "inside ")):
            lost.append("import lane: the process that looked %s %s" % (name.replace("ask ", "at "), record["end"]))
    return lost


def _normalise_name(distribution: str | Mapping[str, Any]) -> str:
    name = distribution if isinstance(distribution, str) else str(distribution.get("name", ""))
    return re.sub(r"[-_.]+", "-", name).lower()


# Building the jobs


def _build_jobs(imports: list[PlannedImport], queries: Mapping[str, tuple[str, Query]]) -> list[Job]:
    present = {planned.module for planned in imports}
    setting = os.environ.get(child.COUNT_BY_NVML)
    jobs = [_build_import_job(planned, present, setting) for planned in imports]
    fact_queries = {"ask " + name: queries[name] for name in queries}
    if TRANSFORMERS in present:
        fact_queries["inside transformers"] = (TRANSFORMERS, introspect.collect_transformers_facts)
    for name, (module, query) in fact_queries.items():
        parent = _installed_parent(TORCH if module == TORCH else MODELING, present)
        jobs.append(Job(name, _make_query_work(query, setting), parent))
    if TORCH in present:
        parent = _installed_parent(TORCH, present)
        jobs.append(Job("inside torch", _make_query_work(introspect.collect_torch_facts, setting), parent))
        jobs.append(Job("inside cuda", _make_query_work(introspect.collect_cuda_facts, setting), parent))
    return jobs


def _build_import_job(planned: PlannedImport, present: set[str], setting: str | None) -> Job:
    shared = planned.is_fork_server and SHARES_IMPORTS
    return Job(
        planned.module,
        _make_import_work(planned.module, shared, setting),
        _installed_parent(planned.parent, present),
        is_fork_server=shared,
        deadline_share=planned.deadline_share,
        vital=planned.module in (TORCH, TRANSFORMERS),
        unfit_reason=child.unfit_reason,
    )


def _installed_parent(module: str, present: set[str]) -> str:
    """Return the nearest parent module that is installed; it is imported first."""
    parents = {planned.module: planned.parent for planned in plan.PLAN}
    while module and module not in present:
        module = parents[module]
    return module


def _make_import_work(module: str, shared: bool, setting: str | None) -> Callable[[Send], bool]:
    def work(send: Send) -> bool:
        sys.dont_write_bytecode = True
        if shared:
            child.count_gpus_by_nvml()
        else:
            child.restore_gpu_counting(setting)
        cuda_reason = child.cuda_unusable_reason()
        if cuda_reason:
            send({"failed": cuda_reason})  # the supervisor tries again in a new process
            return False
        outcome = child.import_module(module, plan.EXTRA_MODULES.get(module, ""))
        imported: bool = outcome["outcome"] == "ok"
        answer: Message = {"outcome": outcome}
        if not imported:
            answer["failed"] = "raised " + outcome["exception"] + " on import"
        send(answer)
        if imported and module in MODULE_QUERIES:
            send({"facts": MODULE_QUERIES[module]()})
        return imported

    return work


def _make_query_work(query: Query, setting: str | None) -> Callable[[Send], bool]:
    def work(send: Send) -> bool:
        sys.dont_write_bytecode = True
        child.restore_gpu_counting(setting)
        cuda_reason = child.cuda_unusable_reason()
        try:
            send({"failed": cuda_reason} if cuda_reason else {"facts": query()})
        except Exception as error:
            send({"failed": describe_error(error)})
        return True

    return work


# Reading the jobs' records


def _read_outcome(module: str, record: Message | None, reason: str) -> dict[str, Any]:
    if record is None:
        return child.make_outcome(module, "skipped", 0.0, message=reason)
    for answer in record["answers"]:
        if "outcome" in answer:
            outcome: dict[str, Any] = answer["outcome"]
            return outcome
    if record["end"] in ("skipped", "lost"):
        return child.make_outcome(module, "skipped", record["seconds"], message=record["why"])
    if record["end"] == "hung":
        frames = child.parse_crash_frames(record["errors"])
        message = "it was still importing after %.1f s and was stopped" % record["seconds"]
        return child.make_outcome(module, "hung", record["seconds"], message=message, frames=frames)
    return _make_died_outcome(module, record)


def _make_died_outcome(module: str, record: Message) -> dict[str, Any]:
    import signal

    status, stderr = int(record["status"]), str(record["errors"])
    name = ""
    if os.WIFSIGNALED(status):
        try:
            name = signal.Signals(os.WTERMSIG(status)).name
        except ValueError:
            name = "signal %d" % os.WTERMSIG(status)
        message = child.last_stderr_lines(stderr)
    else:
        message = "it ended the process with exit status %d while being imported" % os.WEXITSTATUS(status)
    frames = child.parse_crash_frames(stderr)
    return child.make_outcome(module, "died", record["seconds"], message=message, frames=frames, signal=name)


def _read_facts(record: Message | None) -> dict[str, Any]:
    for answer in (record or {}).get("answers", ()):
        if isinstance(answer.get("facts"), dict):
            facts: dict[str, Any] = answer["facts"]
            return facts
    return {}


def _missing_reason(record: Message | None, outcome: Mapping[str, Any] | None, name: str) -> str:
    """Return why a fact is missing."""
    if outcome is None:
        return name + " was not imported"
    if outcome["outcome"] != "ok":
        return name + {"raised": " raised on import", "died": " died on import", "hung": " hung on import"}.get(
            outcome["outcome"], " was not imported"
        )
    for answer in (record or {}).get("answers", ()):
        if "failed" in answer:
            return str(answer["failed"])
    ending = str((record or {}).get("end", ""))
    return "the probing process " + {"died": "died", "hung": "did not answer before its deadline"}.get(
        ending, "did not answer"
    )


def _read_torch_facts(records: Mapping[str, Message], by_module: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    facts = {}
    for field in TORCH_FIELDS:
        record = records.get("inside cuda" if field.startswith("cuda_") else "inside torch")
        reason = _missing_reason(record, by_module.get(TORCH), TORCH)
        facts[field] = _read_facts(record).get(field) or unreadable(reason)
    return facts


def _read_interfaces(records: Mapping[str, Message], by_module: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    sources = {TRANSFORMERS: records.get("inside transformers")}
    sources.update({name: records.get(name) for name in MODULE_QUERIES})
    interfaces: dict[str, Any] = {"availability": {}, "symbols": {}, "signatures": {}}
    for record in sources.values():
        for field in interfaces:
            interfaces[field].update(_read_facts(record).get(field, {}))
    for field, name in INTERFACE_SOURCES.items():
        record = sources[name]
        reason = _missing_reason(record, by_module.get(name), name)
        interfaces[field] = _read_facts(record).get(field) or unreadable(reason)
    return interfaces


def _read_answer(record: Message | None, by_module: Mapping[str, dict[str, Any]], module: str) -> dict[str, Any]:
    for answer in (record or {}).get("answers", ()):
        if "facts" in answer:
            return known(answer["facts"])
    return unreadable(_missing_reason(record, by_module.get(module), module))
