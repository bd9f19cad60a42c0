"""The rank process: joins its peers' group, then runs its job's task together with them."""

import faulthandler
import json
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attncheck.attention.backend import Device
from attncheck.workers.inside.mailbox import Mailbox
from attncheck.workers.inside.worker import die_with_parent, load_task

TOO_FEW_GPUS = "needs one GPU per rank"  # the text by which `attncheck bench` recognises this refusal
LINGER_SECONDS = 3600.0  # a failed rank waits to be stopped, so that its peers do not fail after it


@dataclass
class RankContext:
    """The inputs of a rank's task: its rank, process group, store, device, the job's message and the mailbox."""

    rank: int
    world_size: int
    group: Any
    store: Any
    device: Device
    message: dict[str, Any]
    mailbox: Mailbox
    agreements: int = 0  # the number of agreements between the ranks so far

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0, which sends documents for the group."""
        return self.rank == 0

    def send_if_leader(self, document: dict[str, Any]) -> None:
        """Send a document to the parent process, only on rank 0."""
        if self.is_leader:
            self.mailbox.post(document)

    def agree_on_reason(self, reason: str) -> str:
        """Return the first reason of any rank against an item, "" if none, because all ranks must act together.

        It uses the store, because a collective of objects needs numpy.
        """
        self.agreements += 1
        reasons = self.all_gather_text(f"agree/{self.agreements}", reason)
        return next((reason for reason in reasons if reason), "")

    def all_gather_text(self, key: str, text: str) -> list[str]:
        """Return every rank's `text` under `key`, in the order of ranks, after all ranks have set it."""
        names = [f"{key}/{rank}" for rank in range(self.world_size)]
        self.store.set(names[self.rank], text)
        while not self.store.check(names):  # a blocking get would keep the heartbeat's thread from the store
            time.sleep(0.001)
        return [self.store.get(name).decode() for name in names]


class RankFailed(Exception):
    """This rank cannot continue; the message gives the reason."""


def main(folder: str) -> None:
    """Run the job in `folder`; ends the process."""
    os.dup2(2, 1)
    die_with_parent()
    threading.Thread(target=_exit_when_stdin_closes, args=(folder,), daemon=True).start()
    warnings.simplefilter("ignore")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    faulthandler.enable(all_threads=False)  # so that the parent can read where a rank died
    stream = open(Path(folder) / f"stack-{rank}.txt", "w")  # noqa: SIM115 - open until the process ends
    faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True)
    mailbox = Mailbox(folder, rank)
    message = json.loads((Path(folder) / "job.json").read_text())
    context = None
    try:
        context = _join_group(rank, world_size, message, mailbox)
        load_task(message["task"])(context)
    except BaseException as error:
        _report_failure(error, mailbox, context)
        time.sleep(LINGER_SECONDS)
    sys.stderr.flush()
    os._exit(0)


def _report_failure(error: BaseException, mailbox: Mailbox, context: RankContext | None) -> None:
    """Report why this rank cannot continue: to the parent, and under an external launcher to rank 0."""
    from attncheck.attention.device import describe_exception
    from attncheck.ring.worker.heartbeat import report_fault

    reason = str(error) if isinstance(error, RankFailed) else describe_exception(error)
    mailbox.post_fault(reason)
    if context is not None and context.message["joined"]:
        report_fault(context.store, context.rank, reason)


def _exit_when_stdin_closes(folder: str) -> None:
    """End this process and the launcher when standard input closes, because attncheck has ended by then."""
    parent = os.getppid()
    while sys.stdin.buffer.read(1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    if parent > 1 and os.getppid() == parent and os.environ.get("TORCHELASTIC_RUN_ID") == Path(folder).name:
        os.kill(parent, signal.SIGKILL)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _join_group(rank: int, world_size: int, message: dict[str, Any], mailbox: Mailbox) -> RankContext:
    """Open the device and join the group of all ranks. Raises `RankFailed`."""
    import torch

    from attncheck.attention.device import prepare_device
    from attncheck.ring.worker.rendezvous import RendezvousFailed, rendezvous

    torch.set_num_threads(message["threads"])
    kind = message["device"]
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        local_rank, visible_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local_rank >= visible_gpus:
            reason = f"a ring of {world_size} {TOO_FEW_GPUS}; {visible_gpus} are visible"
            mailbox.post({"unanswered": reason})
            time.sleep(LINGER_SECONDS)
        torch.cuda.set_device(local_rank)
    if message.get("emulate"):
        from attncheck.attention import emulated_flash_attn

        emulated_flash_attn.install(message["emulate"])
    mailbox.post({"meeting": rank})
    try:
        group, store, facts = rendezvous(
            kind, rank, world_size, message["rendezvous_seconds"], message["seconds"], message["sequence"]
        )
    except RendezvousFailed as error:
        raise RankFailed(str(error)) from None
    if message["joined"]:
        from attncheck.ring.worker.heartbeat import start_heartbeat

        start_heartbeat(store, rank, mailbox)
    device = replace(prepare_device(kind), ranks=world_size, emulated=bool(message.get("emulate")))
    context = RankContext(rank, world_size, group, store, device, message, mailbox)
    device_document = {"kind": kind, "name": device.name, "torch": torch.__version__}
    device_document["shimmed_names"] = _shimmed_names() if message.get("shim", True) else []
    context.send_if_leader({"ready": device_document, "facts": facts})
    return context


def _shimmed_names() -> list[str]:
    from attncheck.attention.calls import ring_package

    try:
        ring_package.load()
    except Exception:  # the package's own backends report it
        return []
    return list(ring_package.shimmed_names())
