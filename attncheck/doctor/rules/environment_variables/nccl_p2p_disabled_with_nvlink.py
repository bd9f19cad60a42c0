"""NCCL_P2P_DISABLE=1 prevents NCCL from using this machine's NVLink.

What it checks: the variable, if NVLink connects at least two of the GPUs.

Why it matters: this workaround for consumer cards and broken PCIe peer access sends every transfer through the host,
so collectives and ring attention are many times slower.

What to do: unset it.

Source: NCCL's documentation of NCCL_P2P_DISABLE ("disables the peer to peer (P2P) transport, which uses CUDA direct
access between GPUs, using NVLink or PCI").
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import locate_variables, require_visible_gpus
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, value_or

NAME = "NCCL_P2P_DISABLE"


def check(snapshot: Snapshot) -> Problems:
    if value_or(snapshot.env(NAME), "") != "1" or not isinstance(snapshot.topology, Known):
        return
    visible_indices = {device.index for device in snapshot.visible_devices()}
    nvlinks = [
        link
        for link in snapshot.topology.value.links
        if link.kind.startswith("NV") and {link.first, link.second} <= visible_indices
    ]
    if not nvlinks:
        require_visible_gpus(snapshot)
        return
    unused = f"NVLink between cuda:{nvlinks[0].first} and cuda:{nvlinks[0].second}"
    if len(nvlinks) > 1:
        unused = f"NVLink between {len(nvlinks)} pairs of GPUs"
    yield Problem(
        message=f"{NAME}=1 prevents NCCL from using the {unused}",
        subject=NAME,
        evidence=tuple(f"cuda:{link.first} - cuda:{link.second}: {link.kind}" for link in nvlinks[:4]),
        fixes=(install.unset_variable(NAME),),
        locations=locate_variables(snapshot, NAME),
    )


RULE = Rule("ATN562", "warning", check)
