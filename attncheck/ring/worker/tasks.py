"""Two tasks of a rank: parity across all ranks, and determinism of repeated calls."""

from typing import Any, cast

from attncheck.attention import backends
from attncheck.attention.backend import Backend
from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.verdicts import Mode, Run
from attncheck.measure.worker.tasks import read_cases
from attncheck.ring.worker.rank import RankContext, RankFailed
from attncheck.ring.worker.session import RankSession

# ring-flash-attn merges blocks in a torch.jit.script function (ring_flash_attn/utils.py), which is compiled again after
# its first calls. The first calls therefore differ from later ones in their bits, in every process.
WARM_UP_CALLS = 3


def parity(context: RankContext) -> None:
    """Measure every item with its backend, across all ranks; rank 0 judges."""
    backends_by_name = backends.load()[0]
    sessions: dict[str, RankSession] = {}
    for index, case, backend in _iter_items(context, backends_by_name):
        session = sessions.setdefault(backend.name, RankSession(backend, context, tuple(backends_by_name.values())))
        context.send_if_leader({"item": index, "answer": codec.to_plain(measure_case(session, case))})


def measure_case(session: RankSession, case: Case) -> Run:
    """Return a scheme's run of a case. Raises `RankFailed` if the scheme raised here: peers wait in a collective."""
    run = session.measure(case)
    if run.outcome in ("raised", "out_of_memory") and not session.import_error:
        raise RankFailed(run.reason)
    return run


def determinism(context: RankContext) -> None:
    """Repeat every item, a case and a mode, and compare the outputs of all ranks bit by bit."""
    from attncheck.measure.worker.repeats import Repeater
    from attncheck.ring.worker.gathered import as_single_device

    backends_by_name = backends.load()[0]
    for index, name, backend in _iter_items(context, backends_by_name, names_only=True):
        case_name, _, mode = str(name).partition("@")
        single_device = as_single_device(backend, context.rank, context.group)
        repeater = Repeater(
            single_device, context.device, context.message["repeats"], WARM_UP_CALLS, judges=context.is_leader
        )
        repeats = repeater.measure(read_cases(context.message)[case_name], cast(Mode, mode))
        if repeats.outcome in ("raised", "out_of_memory"):
            raise RankFailed(repeats.reason)
        context.send_if_leader({"item": index, "answer": codec.to_plain(repeats)})


def _iter_items(context: RankContext, backends_by_name: dict[str, Backend], names_only: bool = False) -> Any:
    """Yield (index, case or its name, backend) of each item, after reporting its start."""
    cases = {} if names_only else read_cases(context.message)
    for index, (backend, name) in enumerate(context.message["items"]):
        if backend not in backends_by_name:
            raise RankFailed(f"{backend} is unknown here")
        context.send_if_leader({"started": index})
        yield index, name if names_only else cases[name], backends_by_name[backend]
