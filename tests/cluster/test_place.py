"""Which node we are, read from what launchers set."""

from __future__ import annotations

import pytest

from attncheck.cluster.place import KEY_VARIABLE, read_place
from attncheck.core.io.errors import BadUsage

TORCHRUN = {
    "RANK": "11", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "job",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "3",
    "SLURM_STEP_NUM_NODES": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "gpu[03-06]",
}  # fmt: skip


def test_torchrun_says_the_node_and_one_rank_of_it_leads() -> None:
    place = read_place(TORCHRUN)
    assert (place.launcher, place.node, place.nodes, place.leads, place.local_size) == ("torchrun", 1, 2, False, 8)
    assert place.address == "10.0.0.1" and read_place({**TORCHRUN, "LOCAL_RANK": "0"}).leads


def test_srun_says_the_node_and_the_first_host_leads() -> None:
    place = read_place(SLURM)
    assert (place.launcher, place.node, place.nodes, place.leads, place.address) == ("Slurm", 3, 4, True, "gpu03")


def test_another_launcher_says_how_many_ranks_a_node_has() -> None:
    environ = {name: value for name, value in TORCHRUN.items() if not name.startswith(("GROUP", "TORCH"))}
    place = read_place(environ)
    assert (place.launcher, place.node, place.nodes) == ("ranks", 1, 2)


def test_all_processes_of_a_launch_agree_on_ports_and_key_and_no_other_does() -> None:
    first = read_place(TORCHRUN)
    peer = read_place({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"})
    assert (first.ports, first.key) == (peer.ports, peer.key)
    assert len(first.ports) == 4 and all(10000 <= port < 30000 for port in first.ports)
    for change in ({"TORCHELASTIC_RUN_ID": "x"}, {"MASTER_PORT": "1"}, {KEY_VARIABLE: "secret"}):
        assert read_place({**TORCHRUN, **change}).key != first.key
    assert read_place(TORCHRUN, 4000).ports == (4000,)
    assert "10.0.0.1" not in repr(first) and repr(first.key) not in repr(first)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "no launcher started this process; start it on every node: torchrun"),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_NNODES": "4"}, "no launcher started this process"),
        ({**TORCHRUN, "GROUP_RANK": "two"}, "GROUP_RANK is not a number"),
        ({**TORCHRUN, "GROUP_RANK": "2"}, "this is node 2 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "but not which node this is"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK is set but not MASTER_ADDR"),
    ],
)
def test_without_a_place_there_is_one_line(environ: dict[str, str], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        read_place(environ)
