"""The backends of the examined environment, those to measure, and how a training job selects one."""

from collections.abc import Iterable, Sequence
from typing import Any

from attncheck.attention import backends
from attncheck.attention.backend import Backend
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.model import Model
from attncheck.core.snapshot import Absent, Known, Snapshot, value_or
from attncheck.core.verdicts import BackendState
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event, Job, Pool

SESSION_IMPORTS = ("torch", "attncheck.measure.worker.builds", "attncheck.measure.worker.session")
COMPILER_IMPORTS = ("torch._dynamo", "torch._inductor.compile_fx", "torch.nn.attention.flex_attention")
NOT_COMPILED = "takes long to compile on a CPU: --backend measures it"


def get_backend(name: str) -> Backend:
    """Return a backend by name. Raises `BadUsage` naming the known ones."""
    known = backends.load()[0]
    if name not in known:
        raise BadUsage(f"--backend {name!r} is not one of {', '.join(sorted(known))}")
    return known[name]


def find_backend(name: str) -> Backend | None:
    """Return a backend by name, None if this attncheck does not know it."""
    return backends.load()[0].get(name)


def job_setting(name: str) -> str:
    """Return the setting by which a training job selects a backend, or "" if it has none."""
    for prefix, text in _SETTINGS.items():
        if name.startswith(prefix):
            return text
    return ""


_PINNED_SDPA = 'attn_implementation="sdpa"  # inside torch.nn.attention.sdpa_kernel(SDPBackend.{})'


_SETTINGS = {
    "eager": 'attn_implementation="eager"',
    "sdpa_math": _PINNED_SDPA.format("MATH"),
    "sdpa_flash": _PINNED_SDPA.format("FLASH_ATTENTION"),
    "sdpa_efficient": _PINNED_SDPA.format("EFFICIENT_ATTENTION"),
    "sdpa_cudnn": _PINNED_SDPA.format("CUDNN_ATTENTION"),
    "flash_attention_2": 'attn_implementation="flash_attention_2"',
    "flash_attention_3": 'attn_implementation="flash_attention_3"',
    "flash_attention_4": 'attn_implementation="flash_attention_4"',
    "flex_attention": 'attn_implementation="flex_attention"',
}


_OFF_SWITCHES = {
    "sdpa_cudnn": "torch.backends.cuda.enable_cudnn_sdp(False)",
    "sdpa_flash": "torch.backends.cuda.enable_flash_sdp(False)",
    "sdpa_efficient": "torch.backends.cuda.enable_mem_efficient_sdp(False)",
}


def off_switch(name: str) -> str:
    """Return the line that keeps SDPA from choosing its own backend, "" for any other backend."""
    return _OFF_SWITCHES.get(name, "")


def requested_model(snapshot: Snapshot) -> Model | None:
    """Return the requested model, None if none was named. Raises `Unanswered` if it cannot be read or run."""
    if isinstance(snapshot.model, Known):
        model = snapshot.model.value
        heads = value_or(model.num_heads, 1)
        kv_heads = value_or(model.num_kv_heads, heads)
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise Unanswered(f"the model's configuration cannot be run: {heads} heads with {kv_heads} kv heads")
        return model
    if isinstance(snapshot.model, Absent):
        return None
    next_step = "hf download MODEL config.json, or omit MODEL"
    raise Unanswered(f"the model cannot be read: {snapshot.model.reason.rstrip('.')}; {next_step}")


def list_backends(target: ExecutionTarget) -> list[BackendState]:
    """Return every backend and whether the examined environment has it. Raises `Unanswered` without torch."""
    events: list[Event] = []
    Pool(target.python, 1).run(
        [
            Job(
                "backends",
                {"task": "attncheck.measure.worker.tasks:list_backends"},
                ("backends",),
                target.seconds,
                target.extra_path,
            )
        ],
        events.append,
    )
    last_event = events[-1]
    if last_event.kind != "answer":
        raise Unanswered(f"{target.python} could not list its backends: {last_event.reason}")
    if not last_event.answer["torch"]:
        raise Unanswered(
            f"torch is not installed in the environment of {target.python}; `attncheck doctor` gives details"
        )
    return [_make_state(name, answer) for name, answer in sorted(last_event.answer["backends"].items(), key=_sort_key)]


def _make_state(name: str, answer: dict[str, Any]) -> BackendState:
    return BackendState(
        name,
        answer.get("title", ""),
        answer.get("package", ""),
        answer.get("version", ""),
        answer.get("missing", ""),
        answer.get("over_ranks", False),
    )


def _sort_key(item: tuple[str, Any]) -> tuple[int, str]:
    """Return a key that puts the yardstick first, then torch's own backends, then the packages."""
    name, answer = item
    return (0 if name == "eager" else 1 if answer.get("package") == "torch" else 2), name


def list_imports(compiles: bool) -> tuple[str, ...]:
    """Return the modules that every worker of parity or determinism imports, and the compiler's."""
    return SESSION_IMPORTS + (COMPILER_IMPORTS if compiles else ())


def is_context_parallel(name: str) -> bool:
    """Return whether a backend is a context-parallel scheme, which computes across several ranks."""
    backend = find_backend(name)
    return backend is not None and backend.sharding is not None


def choose_backends(
    states: Sequence[BackendState], names: Iterable[str], over_ranks: bool = False
) -> list[BackendState]:
    """Return the backends to measure: the named ones, or all installed ones for one device, or `over_ranks`.

    Raises `Unanswered` if a named one is not installed, `BadUsage` if it is of the other kind.
    """
    states_by_name = {state.name: state for state in states}
    requested = list(dict.fromkeys(names))
    for name in requested:
        if name not in states_by_name:
            get_backend(name)
            raise Unanswered(f"the examined environment's attncheck does not know {name}")
        if states_by_name[name].missing:
            raise Unanswered(f"{name} cannot be measured here: {states_by_name[name].missing}")
        if states_by_name[name].over_ranks != over_ranks:
            raise BadUsage(f"{name} runs {'on one device: leave' if over_ranks else 'over ranks: add'} --ring-size 2")
    if requested:
        return [states_by_name[name] for name in requested]
    return [state for state in states if not state.missing and state.over_ranks == over_ranks]
