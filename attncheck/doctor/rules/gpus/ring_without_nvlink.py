"""Ring attention would run on GPUs that are not connected by NVLink.

What it checks: the links among the visible GPUs in `nvidia-smi topo -m`. Pairs without any peer access have their own
rule.

Why it matters: ring attention can hide the transfer of keys and values behind computation only if links are fast; its
README requires NVLink for performance. Over PCIe throughput can fall as the ring grows.

What to do: keep a ring inside a group of GPUs with NVLink. Longer sequences per GPU hide more of the transfer. The
break-even length must be measured.

Source: ring_flash_attn 0.1.8 README ("NVLink between GPUs are required for high performance"); axolotl PR#2520;
OpenRLHF/OpenRLHF#927.
"""

from attncheck.core.devices import Link
from attncheck.doctor.fixes import disable_ring_attention, install
from attncheck.doctor.queries import gpus, require_visible_gpus
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    links = gpus.visible_links(snapshot)
    slow = [link for link in links if not _is_nvlink(link) and link.peer_access != Known(False)]
    if not slow:
        require_visible_gpus(snapshot)
        return
    kinds = sorted({link.kind for link in slow})
    yield Problem(
        message=(
            f"{len(slow)} of {len(links)} pairs of visible GPUs are connected by {'/'.join(kinds)}, not by NVLink"
        ),
        subject="GPUs",
        evidence=tuple(f"GPU {link.first}-{link.second}: {link.kind}" for link in slow[:12]),
        fixes=(*_fixes(links), disable_ring_attention(snapshot)),
    )


def _is_nvlink(link: Link) -> bool:
    return link.kind.startswith(("NV", "C2C"))


def _fixes(links: tuple[Link, ...]) -> tuple[Fix, ...]:
    """Return the setting that uses the largest group of GPUs joined pairwise by NVLink, if there is one."""
    nvlink_pairs = {(link.first, link.second) for link in links if _is_nvlink(link)}
    best: list[int] = []
    for first in sorted({gpu for pair in nvlink_pairs for gpu in pair}):
        group = [first]
        for other in sorted({gpu for pair in nvlink_pairs for gpu in pair} - {first}):
            if all((min(gpu, other), max(gpu, other)) in nvlink_pairs for gpu in group):
                group.append(other)
        best = max(best, group, key=len)
    if len(best) < 2:
        return ()
    numbers = ",".join(map(str, sorted(best)))
    return (install.export_variable("CUDA_VISIBLE_DEVICES", numbers, "use the GPUs that NVLink connects"),)


RULE = Rule("ATN216", "warning", check, needs=frozenset({"ring"}))
