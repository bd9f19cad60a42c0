"""Which backends the examined environment has, which of them to measure, and how a job asks for one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attncheck.attention import backends
from attncheck.attention.backend import Backend
from attncheck.core.errors import BadUsage, Unanswered
from attncheck.core.facts import Absent, Known, value_or
from attncheck.core.model import Model
from attncheck.core.results.verdicts import BackendState
from attncheck.core.snapshot import Snapshot
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool


def get_backend(name: str) -> Backend:
    """Return a backend by name. Raises `BadUsage` naming the known ones."""
    known = backends.load()[0]
    if name not in known:
        raise BadUsage(f"--backend {name!r} is not one of {', '.join(sorted(known))}")
    return known[name]


def job_setting(name: str) -> str:
    """Return how a training job asks for a backend, or "" where it cannot."""
    for prefix, text in _SETTINGS.items():
        if name.startswith(prefix):
            return text
    return ""


_PINNED = 'attn_implementation="sdpa"  # inside torch.nn.attention.sdpa_kernel(SDPBackend.{})'


_SETTINGS = {
    "eager": 'attn_implementation="eager"',
    "sdpa_math": _PINNED.format("MATH"),
    "sdpa_flash": _PINNED.format("FLASH_ATTENTION"),
    "sdpa_efficient": _PINNED.format("EFFICIENT_ATTENTION"),
    "sdpa_cudnn": _PINNED.format("CUDNN_ATTENTION"),
    "flash_attention_2": 'attn_implementation="flash_attention_2"',
    "flash_attention_3": 'attn_implementation="flash_attention_3"',
    "flash_attention_4": 'attn_implementation="flash_attention_4"',
    "flex_attention": 'attn_implementation="flex_attention"',
}


def readable_model(snapshot: Snapshot) -> Model | None:
    """Return the model that was asked about, None where none was. Raises `Unanswered` where it cannot be read."""
    if isinstance(snapshot.model, Known):
        model = snapshot.model.value
        heads = value_or(model.num_heads, 1)
        kv_heads = value_or(model.num_kv_heads, heads)
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise Unanswered(f"the model's configuration cannot be run: {heads} heads over {kv_heads} kv heads")
        return model
    if isinstance(snapshot.model, Absent):
        return None
    raise Unanswered(f"the model cannot be read: {snapshot.model.reason}")


def list_backends(bench: ExecutionTarget) -> list[BackendState]:
    """Return every backend and whether the examined environment has it. Raises `Unanswered` without torch."""
    events: list[Event] = []
    Pool(bench.python, 1).run(
        [Job("backends", {"task": "attncheck.measure.worker.tasks:list_backends"}, ("backends",), bench.seconds)],
        events.append,
    )
    ended = events[-1]
    if ended.kind != "answer":
        raise Unanswered(f"{bench.python} cannot be asked for its backends: {ended.reason}")
    if not ended.answer["torch"]:
        raise Unanswered(f"torch is not installed in the environment of {bench.python}; `attncheck doctor` says more")
    return [_state(name, told) for name, told in sorted(ended.answer["backends"].items(), key=_order)]


def _state(name: str, told: dict[str, Any]) -> BackendState:
    return BackendState(
        name,
        told.get("title", ""),
        told.get("package", ""),
        told.get("version", ""),
        told.get("missing", ""),
        told.get("over_ranks", False),
    )


def _order(item: tuple[str, Any]) -> tuple[int, str]:
    """Put the yardstick first, then torch's own, then the packages."""
    name, told = item
    return (0 if name == "eager" else 1 if told.get("package") == "torch" else 2), name


def is_context_parallel(name: str) -> bool:
    """Say whether a backend is a scheme of context parallelism, which computes over several ranks."""
    known = backends.load()[0].get(name)
    return known is not None and known.sharding is not None


def choose_backends(states: Sequence[BackendState], names: Iterable[str], ranks: bool = False) -> list[BackendState]:
    """Return the backends to measure: those named, or all that are here and compute on one device, or over `ranks`.

    Raises `Unanswered` for a named one that is not here, `BadUsage` for one of the other kind.
    """
    here = {state.name: state for state in states}
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in here:
            get_backend(name)
            raise Unanswered(f"the examined environment's attncheck does not know {name}")
        if here[name].missing:
            raise Unanswered(f"{name} cannot be measured here: {here[name].missing}")
        if here[name].over_ranks != ranks:
            raise BadUsage(f"{name} runs {'on one device: leave' if ranks else 'over ranks: add'} --ring-size 2")
    if wanted:
        return [here[name] for name in wanted]
    return [state for state in states if not state.missing and state.over_ranks == ranks]
