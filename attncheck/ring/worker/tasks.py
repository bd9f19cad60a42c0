"""The tasks of a rank: measure parity over all ranks, repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from attncheck.attention import backends
from attncheck.attention.backend import Backend
from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.results.verdicts import Mode, Run

if TYPE_CHECKING:
    from attncheck.ring.worker.session import RankSession
from attncheck.ring.worker.rank import Lost, Member

# ring-flash-attn merges blocks in a torch.jit.script function (ring_flash_attn/utils.py), which is compiled anew after
# its first calls: those have other bits than all later ones, in every process alike.
SETTLING = 3


def parity(member: Member) -> None:
    """Measure every item with its backend, over all ranks; rank 0 judges."""
    from attncheck.ring.worker.session import RankSession

    known = backends.load()[0]
    sessions: dict[str, RankSession] = {}
    for index, case, backend in _items(member, known):
        session = sessions.setdefault(backend.name, RankSession(backend, member, tuple(known.values())))
        member.say({"item": index, "answer": codec.plain(measured(session, case))})


def measured(session: RankSession, case: Case) -> Run:
    """Return what a scheme does with a case. Raises `Lost` where it raised here: its peers wait in a collective."""
    run = session.measure(case)
    if run.outcome in ("raised", "out_of_memory") and not session.broken:
        raise Lost(run.reason)
    return run


def determinism(member: Member) -> None:
    """Repeat every item, a case and a mode, and compare bit by bit what all ranks returned."""
    from attncheck.measure.worker.repeats import Repeater
    from attncheck.ring.worker.gathered import gathered

    known = backends.load()[0]
    for index, name, backend in _items(member, known, named=True):
        case_name, _, mode = str(name).partition("@")
        whole = gathered(backend, member.rank, member.group)
        repeater = Repeater(whole, member.device, member.message["repeats"], SETTLING)
        found = repeater.measure(_cases(member.message)[case_name], cast(Mode, mode))
        if found.outcome in ("raised", "out_of_memory"):
            raise Lost(found.reason)
        member.say({"item": index, "answer": codec.plain(found)})


def _items(member: Member, known: dict[str, Backend], named: bool = False) -> Any:
    """Yield (index, case or its name, backend) of each item, saying that it is begun."""
    cases = {} if named else _cases(member.message)
    for index, (backend, name) in enumerate(member.message["items"]):
        if backend not in known:
            raise Lost(f"{backend} is not known here")
        member.say({"started": index})
        yield index, name if named else cases[name], known[backend]


def _cases(message: dict[str, Any]) -> dict[str, Case]:
    return {document["name"]: codec.read(Case, document) for document in message["cases"]}
