"""A backend that computes over ranks, measured: each rank does its part, rank 0 has the reference and judges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend
from attncheck.attention.calls import ring_package
from attncheck.attention.device import message
from attncheck.core.cases import Case
from attncheck.core.results.verdicts import Run
from attncheck.core.sharding import owner
from attncheck.measure.worker.session import Session
from attncheck.ring.worker.gathered import gathered

if TYPE_CHECKING:
    from attncheck.ring.worker.rank import Member


def _unimportable(backend: Backend) -> str:
    """Return why the package of a backend cannot be imported here: every case would lose a group over it."""
    if backend.package != ring_package.NAME:
        return ""
    try:
        ring_package.load()
    except BaseException as error:  # a damaged package may raise anything
        return f"import ring_flash_attn raises {message(error)}"
    return ""


class RankSession:
    """One backend at work on a group of ranks, case after case."""

    def __init__(self, backend: Backend, member: Member, others: Sequence[Backend] = ()) -> None:
        self.backend, self.member = backend, member
        self.broken = member.agree(_unimportable(backend))
        whole = gathered(backend, member.rank, member.group)
        self._session = Session(
            whole
            if member.device.kind == "cuda"
            else replace(whole, kernel_pattern=""),  # plain torch has nobody's kernels
            member.device,
            others,
            math.inf,
            judging=member.leads,
            watching=member.device.kind == "cuda",
        )

    def measure(self, case: Case) -> Run:
        """Return what the backend does with `case`; every rank of the group must ask for the same."""
        run = self._session.preflight(case)
        if self.broken and run.outcome == "ok":
            return replace(run, outcome="raised", reason=self.broken)
        reason = self.member.agree("" if run.outcome == "ok" else run.reason)
        if reason:
            return replace(run, outcome=run.outcome if run.outcome != "ok" else "skipped", reason=reason)
        run = self._session.attempt(run)
        sharding = self.backend.sharding
        assert sharding is not None
        scores = tuple(replace(s, rank=owner(sharding, case, s.token)) for s in run.scores)
        return replace(run, scores=scores)
