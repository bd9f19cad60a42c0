"""What parity and determinism share: the examined interpreter, its backends, progress, and findings."""

from __future__ import annotations

import glob
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from attncheck.attention import backends
from attncheck.attention.backend import Backend
from attncheck.core.errors import BadUsage, Unanswered
from attncheck.core.facts import Absent, Known, value_or
from attncheck.core.model import Model
from attncheck.core.results.verdicts import BackendState, MeasuredOn, Outcome
from attncheck.core.snapshot import Snapshot
from attncheck.workers.pool import Event, Job, Pool, cores


@dataclass(frozen=True)
class Bench:
    """Where cases run: the interpreter, the device asked for ("auto", "cpu", "cuda"), seconds for each case."""

    python: str
    device: str = "auto"
    seconds: float = 60.0

    @property
    def gpu(self) -> bool:
        """Whether a GPU is likely to be used, as far as can be told without opening one."""
        return self.device == "cuda" or (self.device == "auto" and bool(glob.glob("/dev/nvidia[0-9]*")))

    def threads(self, slots: int) -> int:
        """Return the CPU threads of one worker among `slots`."""
        return max(1, cores() // slots)


def backend(name: str) -> Backend:
    """Return a backend by name. Raises `BadUsage` naming the known ones."""
    known = backends.load()[0]
    if name not in known:
        raise BadUsage(f"--backend {name!r} is not one of {', '.join(sorted(known))}")
    return known[name]


def setting(name: str) -> str:
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


def model_of(snapshot: Snapshot) -> Model | None:
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


def outcome(event: Event) -> Outcome:
    """Return the outcome of an item that was not measured; a rank that had no memory raises, and is not at fault."""
    if event.kind == "raised" and "out of memory" in event.reason.lower():
        return "out_of_memory"
    lost: dict[str, Outcome] = {"raised": "raised", "died": "died", "timed_out": "timed_out", "given_up": "skipped"}
    return lost[event.kind]


def measured_on(pool: Pool, seed: int, began: float, suite: str = "", not_reached: int = 0) -> MeasuredOn:
    """Return what was measured on; `began` is a time.monotonic() value."""
    kind, name, torch = (str(pool.device.get(key, "")) for key in ("kind", "name", "torch"))
    return MeasuredOn(kind, name, torch, suite, seed, round(time.monotonic() - began, 3), not_reached)


def census(bench: Bench) -> list[BackendState]:
    """Return every backend and whether the examined environment has it. Raises `Unanswered` without torch."""
    events: list[Event] = []
    Pool(bench.python, 1).run([Job("census", {"task": "census"}, ("census",), bench.seconds)], events.append)
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


def over_ranks(name: str) -> bool:
    """Say whether a backend is a scheme of context parallelism, which computes over several ranks."""
    known = backends.load()[0].get(name)
    return known is not None and known.sharding is not None


def choose(states: Sequence[BackendState], names: Iterable[str], ranks: bool = False) -> list[BackendState]:
    """Return the backends to measure: those named, or all that are here and compute on one device, or over `ranks`.

    Raises `Unanswered` for a named one that is not here, `BadUsage` for one of the other kind.
    """
    here = {state.name: state for state in states}
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in here:
            backend(name)
            raise Unanswered(f"the examined environment's attncheck does not know {name}")
        if here[name].missing:
            raise Unanswered(f"{name} cannot be measured here: {here[name].missing}")
        if here[name].over_ranks != ranks:
            raise BadUsage(f"{name} runs {'on one device: leave' if ranks else 'over ranks: add'} --ring-size 2")
    if wanted:
        return [here[name] for name in wanted]
    return [state for state in states if not state.missing and state.over_ranks == ranks]


@dataclass
class Progress:
    """Says how far the measuring is, and how long the rest will take."""

    say: Callable[[str], None]
    total: int
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    first: float = 0.0  # when the first case was done: what came before was starting up

    def hear(self, event: Event) -> None:
        """Take note of an event of the pool."""
        if event.kind != "started":
            self.done += 1
            self.first = self.first or time.monotonic()
        self.say(f"{self.done} of {self.total} cases{self._left()} · {event.job}: {event.item}")

    def _left(self) -> str:
        elapsed = time.monotonic() - (self.first or time.monotonic())
        if self.done < 5 or elapsed < 1.0:
            return ""
        return f", about {max(1, round(elapsed / self.done * (self.total - self.done)))} s left"
