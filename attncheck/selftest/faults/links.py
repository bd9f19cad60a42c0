"""Communication that delivers something else, or does not end: planted in torch.distributed, in every rank."""

from __future__ import annotations

from attncheck.selftest.faults import Family, Fault, Ground, Plant
from attncheck.selftest.faults.plugins import start_up

HEAD = """
import os, signal, time
if "RANK" in os.environ:
    import torch
    import torch.distributed as dist
    RANK = int(os.environ["RANK"])
"""
WRONG = """
    gather = dist.all_gather_into_tensor
    def swapped(got, sent, group=None):
        gather(got, sent, group=group)
        if RANK == 1:
            got.copy_(torch.cat(got.chunk(2)[::-1]))
    dist.all_gather_into_tensor = swapped
"""
STALE = """
    batch = dist.batch_isend_irecv
    def flipped(operations):
        for request in batch(operations):
            request.wait()
        if RANK == 0 and operations[1].tensor.numel() > 1021:
            operations[1].tensor.view(torch.uint8)[12345] ^= 0xFF
        return []
    dist.batch_isend_irecv = flipped
"""
DIES = """
    scatter = dist.reduce_scatter_tensor
    def dies(got, given, group=None):
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        scatter(got, given, group=group)
    dist.reduce_scatter_tensor = dies
"""
RAISES = """
    gather = dist.all_gather_into_tensor
    def raises(got, sent, group=None):
        if RANK == 1:
            raise ValueError("no luck")
        gather(got, sent, group=group)
    dist.all_gather_into_tensor = raises
"""


def lay(ground: Ground) -> None:
    """Let two ranks talk to each other: GPUs where there are two, else the CPU."""
    if ground.gpus < 2:
        ground.environ["CUDA_VISIBLE_DEVICES"] = ""
    ground.words += ["doctor", "--python", ground.python, "--lane", "static,device" if ground.gpus > 1 else "static"]
    ground.words += ["--ring-size", "2", "--format", "json"]


COMMUNICATION = Family("communication", "doctor with two ranks that talk", lay, ("torch",), heavy=True)


def fault(name: str, code: str, title: str, imitates: str, source: str, *says: str) -> Fault:
    """Return a fault of communication."""
    planted: Plant = lambda ground: start_up(ground, HEAD + source)
    return Fault(name, COMMUNICATION, (code,), title, imitates, planted, says)


FAULTS = (
    fault("senders-swapped", "ATN520", "an all_gather whose parts come in another order on one rank",
          "ranks numbered differently in a subgroup", WRONG, "rank 1"),
    fault("byte-flipped", "ATN520", "one byte of a large message changed", "a link with errors that nobody corrects",
          STALE),
    fault("rank-killed", "ATN521", "a rank killed in a reduce_scatter", "the kernel's out-of-memory killer", DIES,
          "rank 1", "SIGKILL"),
    fault("rank-raises", "ATN521", "a rank that raises in an all_gather", "a library of another version on one node",
          RAISES, "no luck"),
)  # fmt: skip
