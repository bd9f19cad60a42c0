"""The inside of a rank: meets its peers, then runs the task of its job together with them."""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any

from attncheck.attention.backend import Device
from attncheck.workers.inside.mailbox import Board
from attncheck.workers.inside.worker import die_with_parent, load_task

if TYPE_CHECKING:
    pass

FOREVER = 3600.0  # whoever has said that it cannot go on waits to be stopped, so that its peers do not fail after it


@dataclass
class Member:
    """One rank of a group: where it stands, what it was told, and the board it writes to."""

    rank: int
    world_size: int
    group: Any
    store: Any
    device: Device
    message: dict[str, Any]
    board: Board
    agreed: int = 0  # how often the ranks have agreed on something

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for the group."""
        return self.rank == 0

    def say(self, document: dict[str, Any]) -> None:
        """Say something to attncheck, if we lead."""
        if self.leads:
            self.board.say(document)

    def agree(self, reason: str) -> str:
        """Return the first reason against an item that any rank has, "" where none: all ranks must do alike.

        Through the store, not by a collective of objects, which wants numpy.
        """
        self.agreed += 1
        return next((found for found in self.shared(f"agree/{self.agreed}", reason) if found), "")

    def shared(self, key: str, text: str) -> list[str]:
        """Return what every rank says under `key`; none goes on before all have said it."""
        names = [f"{key}/{rank}" for rank in range(self.world_size)]
        self.store.set(names[self.rank], text)
        while not self.store.check(names):  # a blocking get would keep the watching thread from the store
            time.sleep(0.001)
        return [self.store.get(name).decode() for name in names]


class Lost(Exception):
    """This rank cannot go on; the message says why."""


def main(folder: str) -> None:
    """Serve the job in `folder`; ends the process."""
    os.dup2(2, 1)
    die_with_parent()
    threading.Thread(target=_end_with_input, args=(folder,), daemon=True).start()
    warnings.simplefilter("ignore")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stream = open(Path(folder) / f"stack-{rank}.txt", "w")  # noqa: SIM115 - open for as long as we live
    faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True)
    board = Board(folder, rank)
    message = json.loads((Path(folder) / "job.json").read_text())
    member = None
    try:
        member = _join(rank, world_size, message, board)
        load_task(message["task"])(member)
    except BaseException as error:
        _lost(error, board, member)
        time.sleep(FOREVER)
    sys.stderr.flush()
    os._exit(0)


def _lost(error: BaseException, board: Board, member: Member | None) -> None:
    """Say why this rank cannot go on: to attncheck, and under a launcher outside to the first rank."""
    from attncheck.attention.device import message
    from attncheck.ring.worker.heartbeat import tell

    told = str(error) if isinstance(error, Lost) else message(error)
    board.fault(told)
    if member is not None and member.message["joined"]:
        tell(member.store, member.rank, told)


def _end_with_input(folder: str) -> None:
    """End when standard input does, the launcher with us: attncheck is gone, whatever took it."""
    parent = os.getppid()
    while sys.stdin.buffer.read(1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    if parent > 1 and "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() == parent and _launched_by_us(folder):
        os.kill(parent, signal.SIGKILL)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _launched_by_us(folder: str) -> bool:
    return os.environ.get("TORCHELASTIC_RUN_ID") == Path(folder).name


def _join(rank: int, world_size: int, message: dict[str, Any], board: Board) -> Member:
    """Open the device and meet the others. Raises `Lost`."""
    import torch

    from attncheck.attention.device import device_of
    from attncheck.ring.worker.rendezvous import NotMet, meet

    torch.set_num_threads(message["threads"])
    kind = message["device"]
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        local, visible = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= visible:
            board.say({"unanswered": f"a ring of {world_size} needs a GPU for each rank here; {visible} can be seen"})
            time.sleep(FOREVER)
        torch.cuda.set_device(local)
    if message.get("emulate"):
        from attncheck.ring import emulated_flash_attn

        emulated_flash_attn.install(message["emulate"])
    try:
        group, store, facts = meet(
            kind, rank, world_size, message["rendezvous_seconds"], message["seconds"], message["sequence"]
        )
    except NotMet as error:
        raise Lost(str(error)) from None
    if message["joined"]:
        from attncheck.ring.worker.heartbeat import watch

        watch(store, rank, board)
    device = replace(device_of(kind), ranks=world_size, emulated=bool(message.get("emulate")))
    member = Member(rank, world_size, group, store, device, message, board)
    told = {"kind": kind, "name": device.name, "torch": torch.__version__}
    told["shimmed_names"] = _put_back() if message.get("shim", True) else []
    member.say({"ready": told, "facts": facts})
    return member


def _put_back() -> list[str]:
    from attncheck.attention.calls import ring_package

    try:
        ring_package.load()
    except Exception:  # its own backends will say so
        return []
    return list(ring_package.put_back())
