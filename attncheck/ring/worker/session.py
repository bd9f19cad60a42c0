"""Measures a context-parallel backend: each rank computes its part, rank 0 has the reference and judges."""

import math
from collections.abc import Sequence
from dataclasses import replace

from attncheck.attention.backend import Backend
from attncheck.attention.calls import ring_package
from attncheck.attention.device import describe_exception
from attncheck.core.cases import Case
from attncheck.core.sharding import owning_rank
from attncheck.core.verdicts import Run
from attncheck.measure.worker.session import ParitySession
from attncheck.ring.worker.gathered import as_single_device
from attncheck.ring.worker.rank import RankContext


def _import_error(backend: Backend) -> str:
    """Return why the package of a backend cannot be imported, "" if it can; otherwise each case would lose ranks."""
    if backend.package != ring_package.DISTRIBUTION:
        return ""
    try:
        ring_package.load()
    except BaseException as error:  # a damaged package may raise anything
        return f"import ring_flash_attn raises {describe_exception(error)}"
    return ""


class RankSession:
    """One backend that a group of ranks measures, case after case."""

    def __init__(
        self, backend: Backend, context: RankContext, others: Sequence[Backend] = (), traces_kernels: bool = True
    ) -> None:
        self.backend, self.context = backend, context
        self.import_error = context.agree_on_reason(_import_error(backend))
        single_device = as_single_device(backend, context.rank, context.group)
        if context.device.kind != "cuda":
            # emulated kernels in plain torch do not match the backend's kernel names
            single_device = replace(single_device, kernel_pattern="")
        self._session = ParitySession(
            single_device,
            context.device,
            others,
            math.inf,
            judges=context.is_leader,
            traces_kernels=traces_kernels and context.device.kind == "cuda",
        )

    def measure(self, case: Case) -> Run:
        """Return the backend's run of `case`; every rank of the group must call it with the same case."""
        run = self._session.check_case(case)
        if self.import_error and run.outcome == "ok":
            return replace(run, outcome="raised", reason=self.import_error)
        reason = self.context.agree_on_reason("" if run.outcome == "ok" else run.reason)
        if reason:
            return replace(run, outcome=run.outcome if run.outcome != "ok" else "skipped", reason=reason)
        run = self._session.run_case(run)
        sharding = self.backend.sharding
        assert sharding is not None
        scores = tuple(replace(s, rank=owning_rank(sharding, case, s.token)) for s in run.scores)
        return replace(run, scores=scores)
