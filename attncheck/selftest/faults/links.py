"""Communication that delivers wrong data or never ends, injected into torch.distributed in every rank."""

from attncheck.selftest.faults import Family, Fault, Sandbox, SandboxAction
from attncheck.selftest.faults.plugins import add_sitecustomize

SOURCE_HEAD = """
import os, signal, time
if "RANK" in os.environ:
    import torch
    import torch.distributed as dist
    RANK = int(os.environ["RANK"])
"""
SWAPPED = """
    gather = dist.all_gather_into_tensor
    def swapped(output, sent, group=None):
        gather(output, sent, group=group)
        if RANK == 1:
            output.copy_(torch.cat(output.chunk(2)[::-1]))
    dist.all_gather_into_tensor = swapped
"""
FLIPPED = """
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
    def dies(output, contribution, group=None):
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        scatter(output, contribution, group=group)
    dist.reduce_scatter_tensor = dies
"""
RAISES = """
    gather = dist.all_gather_into_tensor
    def raises(output, sent, group=None):
        if RANK == 1:
            raise ValueError("no luck")
        gather(output, sent, group=group)
    dist.all_gather_into_tensor = raises
"""


def setup_communication(sandbox: Sandbox) -> None:
    """Let two ranks communicate, on GPUs if there are two, otherwise on the CPU."""
    if sandbox.gpus < 2:
        sandbox.environ["CUDA_VISIBLE_DEVICES"] = ""
    lanes = "static,device" if sandbox.gpus > 1 else "static"
    sandbox.arguments += ["doctor", "--python", sandbox.python, "--lane", lanes, "--ring-size", "2", "--format", "json"]


COMMUNICATION = Family(
    "communication", "doctor with two ranks that communicate", setup_communication, ("torch",), heavy=True
)


def make_fault(name: str, code: str, title: str, imitates: str, source: str, *mentions: str) -> Fault:
    """Return a communication fault."""
    inject: SandboxAction = lambda sandbox: add_sitecustomize(sandbox, SOURCE_HEAD + source)
    return Fault(name, COMMUNICATION, (code,), title, imitates, inject, mentions)


FAULTS = (
    make_fault("senders-swapped", "ATN520", "an all_gather whose parts arrive in the wrong order on one rank",
          "ranks numbered differently in a subgroup", SWAPPED, "rank 1"),
    make_fault("byte-flipped", "ATN520", "one byte of a large message changed",
          "a link with uncorrected errors", FLIPPED),
    make_fault("rank-killed", "ATN521", "a rank killed in a reduce_scatter", "the kernel's out-of-memory killer", DIES,
          "rank 1", "SIGKILL"),
    make_fault("rank-raises", "ATN521", "a rank that raises in an all_gather",
          "a library of a different version on one node", RAISES, "no luck"),
)  # fmt: skip
