"""The import lane: really imports the attention stack, each module in a process of its own, and asks it for facts.

torch is imported once, transformers once on top of it, and every other module in a fork of the process that has
what it needs, so that all of it takes little longer than the slowest import alone. See `keeper` for what happens to
those that crash, hang or hold on.
"""

from __future__ import annotations

import os
import re
import sys

from ..facts import failure, known, unreadable
from ..processes.job import Job
from . import child, introspect, liger, plan
from .plan import MODELING, TORCH, TRANSFORMERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set, Tuple, Union

    from ..processes.forking import Message, Send
    from .plan import Entry

    Question = Callable[[], Any]

INSIDE: Dict[str, Question] = {
    "flash_attn": introspect.inside_flash_attn,
    "liger_kernel.transformers": liger.inside_liger,
}
TORCH_FIELDS = ("arch_list", "cudnn", "nccl", "cuda_available", "cuda_error", "sdpa_switches")
INTERFACES = {
    "unpad_input_arity": "flash_attn",
    "liger_model_types": "liger_kernel.transformers",
    "liger_missing_targets": "liger_kernel.transformers",
    "attention_functions": TRANSFORMERS,
    "mask_functions": TRANSFORMERS,
    "kernel_fallbacks": TRANSFORMERS,
}
# Elsewhere (macOS) libraries that have started threads do not survive a fork: everyone starts from nothing there.
SHARES_IMPORTS = sys.platform.startswith("linux")


def look(
    distributions: Iterable[Union[str, Mapping[str, Any]]],
    deadline: float,
    questions: Optional[Mapping[str, Question]] = None,
    torch_questions: Optional[Mapping[str, Question]] = None,
) -> Dict[str, Any]:
    """Return "imports", "torch" (its second block), "interfaces" and "answers", after about `deadline` seconds at most.

    `distributions` are names, or records with a "name". `questions` are further functions to ask where transformers
    is imported, `torch_questions` where torch alone is; each runs in its own child and its answer, a fact, comes back
    under its name in "answers".
    """
    installed = {_normalised(item) for item in distributions}
    asked = {name: (TRANSFORMERS, question) for name, question in (questions or {}).items()}
    asked.update((name, (TORCH, question)) for name, question in (torch_questions or {}).items())
    entries = plan.chosen(installed)
    reason = "" if hasattr(os, "fork") else "modules cannot be imported safely here: this system cannot fork"
    records: Dict[str, Message] = {}
    if entries and not reason:
        from ..processes import supervision

        try:
            records = supervision.run(_jobs(entries, asked), deadline)
        except OSError as error:
            reason = failure(error)
    outcomes = [_outcome(entry.module, records.get(entry.module), reason) for entry in entries]
    outcomes += [
        child.outcome(name, "skipped", 0.0, message=name + " is not installed")
        for name in (TORCH, TRANSFORMERS)
        if name not in installed
    ]
    by_module = {outcome["module"]: outcome for outcome in outcomes}
    return {
        "imports": outcomes,
        "torch": _torch(records, by_module),
        "interfaces": _interfaces(records, by_module),
        "answers": {name: _answer(records.get("ask " + name), by_module, asked[name][0]) for name in asked},
    }


def _normalised(item: Union[str, Mapping[str, Any]]) -> str:
    name = item if isinstance(item, str) else str(item.get("name", ""))
    return re.sub(r"[-_.]+", "-", name).lower()


# The jobs


def _jobs(entries: List[Entry], asked: Mapping[str, Tuple[str, Question]]) -> List[Job]:
    present = {entry.module for entry in entries}
    setting = os.environ.get(child.BY_NVML)
    jobs = [_import_job(entry, present, setting) for entry in entries]
    questions = {"ask " + name: asked[name] for name in asked}
    if TRANSFORMERS in present:
        questions["inside transformers"] = (TRANSFORMERS, introspect.inside_transformers)
    for name, (module, question) in questions.items():
        parent = _parent(TORCH if module == TORCH else MODELING, present)
        jobs.append(Job(name, _asking(question, setting), parent))
    if TORCH in present:
        jobs.append(Job("inside torch", _asking(introspect.inside_torch, setting), _parent(TORCH, present)))
        jobs.append(Job("inside cuda", _asking(introspect.inside_cuda, setting), _parent(TORCH, present)))
    return jobs


def _import_job(entry: Entry, present: Set[str], setting: Optional[str]) -> Job:
    shared = entry.nursery and SHARES_IMPORTS
    return Job(
        entry.module,
        _importing(entry.module, shared, setting),
        _parent(entry.parent, present),
        nursery=shared,
        share=entry.share,
        vital=entry.module in (TORCH, TRANSFORMERS),
        unfit=child.cuda_started,
    )


def _parent(module: str, present: Set[str]) -> str:
    """Return what is imported before, stepping over what is not installed."""
    parents = {entry.module: entry.parent for entry in plan.PLAN}
    while module and module not in present:
        module = parents[module]
    return module


def _importing(module: str, shared: bool, setting: Optional[str]) -> Callable[[Send], bool]:
    def work(send: Send) -> bool:
        sys.dont_write_bytecode = True
        if shared:
            child.count_by_nvml()
        else:
            child.count_as_user(setting)
        lost = child.cuda_lost()
        if lost:
            send({"failed": lost})  # the keeper tries again from nothing
            return False
        outcome = child.bring_in(module, plan.ALSO.get(module, ""))
        good: bool = outcome["outcome"] == "ok"
        answer: Message = {"outcome": outcome}
        if not good:
            answer["failed"] = "raised " + outcome["exception"] + " on import"
        send(answer)
        if good and module in INSIDE:
            send({"facts": INSIDE[module]()})
        return good

    return work


def _asking(question: Question, setting: Optional[str]) -> Callable[[Send], bool]:
    def work(send: Send) -> bool:
        sys.dont_write_bytecode = True
        child.count_as_user(setting)
        lost = child.cuda_lost()
        try:
            send({"failed": lost} if lost else {"facts": question()})
        except Exception as error:
            send({"failed": failure(error)})
        return True

    return work


# What they said


def _outcome(module: str, record: Optional[Message], reason: str) -> Dict[str, Any]:
    if record is None:
        return child.outcome(module, "skipped", 0.0, message=reason)
    for answer in record["answers"]:
        if "outcome" in answer:
            found: Dict[str, Any] = answer["outcome"]
            return found
    if record["end"] == "skipped":
        return child.outcome(module, "skipped", record["seconds"], message=record["why"])
    if record["end"] == "hung":
        frames = child.crash_frames(record["errors"])
        message = "it was still importing after %.1f s and was stopped" % record["seconds"]
        return child.outcome(module, "hung", record["seconds"], message=message, frames=frames)
    return _died(module, record)


def _died(module: str, record: Message) -> Dict[str, Any]:
    import signal

    status, errors = int(record["status"]), str(record["errors"])
    name = ""
    if os.WIFSIGNALED(status):
        try:
            name = signal.Signals(os.WTERMSIG(status)).name
        except ValueError:
            name = "signal %d" % os.WTERMSIG(status)
        message = child.last_words(errors)
    else:
        message = "it ended the process with exit status %d while being imported" % os.WEXITSTATUS(status)
    frames = child.crash_frames(errors)
    return child.outcome(module, "died", record["seconds"], message=message, frames=frames, signal=name)


def _facts(record: Optional[Message]) -> Dict[str, Any]:
    for answer in (record or {}).get("answers", ()):
        if isinstance(answer.get("facts"), dict):
            found: Dict[str, Any] = answer["facts"]
            return found
    return {}


def _why(record: Optional[Message], outcome: Optional[Mapping[str, Any]], name: str) -> str:
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
    ended = str((record or {}).get("end", ""))
    return "the process that was asked " + {"died": "died", "hung": "hung"}.get(ended, "gave no answer")


def _torch(records: Mapping[str, Message], by_module: Mapping[str, Dict[str, Any]]) -> Dict[str, Any]:
    found = {}
    for field in TORCH_FIELDS:
        record = records.get("inside cuda" if field.startswith("cuda_") else "inside torch")
        found[field] = _facts(record).get(field) or unreadable(_why(record, by_module.get(TORCH), TORCH))
    return found


def _interfaces(records: Mapping[str, Message], by_module: Mapping[str, Dict[str, Any]]) -> Dict[str, Any]:
    sources = {TRANSFORMERS: records.get("inside transformers")}
    sources.update({name: records.get(name) for name in INSIDE})
    found: Dict[str, Any] = {"availability": {}, "symbols": {}, "signatures": {}}
    for record in sources.values():
        for field in found:
            found[field].update(_facts(record).get(field, {}))
    for field, name in INTERFACES.items():
        record = sources[name]
        found[field] = _facts(record).get(field) or unreadable(_why(record, by_module.get(name), name))
    return found


def _answer(record: Optional[Message], by_module: Mapping[str, Dict[str, Any]], module: str) -> Dict[str, Any]:
    for answer in (record or {}).get("answers", ()):
        if "facts" in answer:
            return known(answer["facts"])
    return unreadable(_why(record, by_module.get(module), module))
