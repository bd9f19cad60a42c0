"""What is wrong with the communication among ranks: pure judging of their exchanges, versions and settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.results.collectives import CollectiveResult, Communication, RankFacts, Route
from attncheck.doctor import engine

# How much of a link's documented rate one message of 64 MiB must reach; below it, something else carries it.
NVLINK_SHARE, PCIE_SHARE, GROUP_SHARE = 0.25, 0.40, 0.10
MUST_AGREE = ("torch", "NCCL", "flash-attn")
MAY_DIFFER = ("Python", "driver", "ring-flash-attn", "transformers")
SHOWN = 6
UNSET = "not set"


def findings(communication: Communication) -> tuple[Finding, ...]:
    """Return what is wrong, the gravest first."""
    judges = (_shared_gpus, _wrong, _failed, _versions, _settings, _slow)
    return tuple(finding for judge in judges for finding in judge(communication))


def _wrong(communication: Communication) -> Iterator[Finding]:
    wrong = [exchange for exchange in communication.exchanges if exchange.wrong]
    if not wrong:
        return
    evidence = []
    for exchange in wrong[:SHOWN]:
        evidence.append(f"{exchange.name}: {exchange.wrong} of {exchange.compared} elements wrong")
        evidence += [
            f"  rank {p.rank}, element {p.index} of {p.length} ({p.dtype}): {p.got}, in place of {p.expected}"
            for p in exchange.places[:SHOWN]
        ]
    evidence += _more(wrong)
    names = ", ".join(dict.fromkeys(exchange.operation for exchange in wrong))
    yield engine.make_finding_by_code(
        "ATN520", Problem(f"data arrive wrong by {names}", tuple(evidence), _diagnosis(communication), "communication")
    )


def _failed(communication: Communication) -> Iterator[Finding]:
    failed = [e for e in communication.exchanges if e.outcome in ("raised", "died", "timed_out")]
    if not failed:
        return
    evidence = [f"{exchange.name}: {exchange.reason}" for exchange in failed[:SHOWN]] + _more(failed)
    given_up = [exchange.name for exchange in communication.exchanges if exchange.outcome == "skipped"]
    if given_up:
        evidence.append(f"given up: {', '.join(given_up[:SHOWN])}{' …' * (len(given_up) > SHOWN)}")
    counted = f"{len(failed)} of {len(communication.exchanges)} exchanges"
    message = f"{counted} among {communication.world_size} ranks did not come to an end"
    yield engine.make_finding_by_code(
        "ATN521", Problem(message, tuple(evidence), _diagnosis(communication), "communication")
    )


def _more(exchanges: list[CollectiveResult]) -> list[str]:
    return [f"… and {len(exchanges) - SHOWN} more"] if len(exchanges) > SHOWN else []


def _diagnosis(communication: Communication) -> tuple[Fix, ...]:
    """Return how NCCL is made to say what it does."""
    if communication.transport != "nccl":
        return ()
    setting = "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,P2P,SHM"
    return (Fix("let NCCL say which path it takes", "env", setting),)


def _versions(communication: Communication) -> Iterator[Finding]:
    ranks = communication.ranks
    for names, predicted in ((MUST_AGREE, False), (MAY_DIFFER, True)):
        found = _differing(ranks, {name: [_version(facts, name) for facts in ranks] for name in names})
        if found:
            message = f"ranks differ in {' and '.join(found)}"
            fix = Fix("install the same on every node", "manual", "take one image, or one lock file, for all nodes")
            yield engine.make_finding_by_code(
                "ATN522", Problem(message, _evidence(found), (fix,), ", ".join(found), predicted)
            )


def _version(facts: RankFacts, name: str) -> str:
    own = {"torch": facts.torch, "NCCL": facts.nccl, "Python": facts.python, "driver": facts.driver}
    return own[name] or "not told" if name in own else facts.packages.get(name, "not installed")


def _settings(communication: Communication) -> Iterator[Finding]:
    ranks = communication.ranks
    names = sorted({name for facts in ranks for name in facts.environ})
    found = _differing(ranks, {name: [facts.environ.get(name, UNSET) for facts in ranks] for name in names})
    if found:
        message = f"ranks differ in the settings {', '.join(found)}"
        fix = Fix("set them for every rank alike", "manual", "export them in the job's script, not in a node's profile")
        yield engine.make_finding_by_code("ATN523", Problem(message, _evidence(found), (fix,), ", ".join(found)))


Shares = dict[str, list[RankFacts]]  # the ranks that have each value


def _differing(ranks: Sequence[RankFacts], values: dict[str, list[str]]) -> dict[str, Shares]:
    """Return the names whose values, one for each rank, are not all the same."""
    found = {name: _shares(ranks, each) for name, each in values.items()}
    return {name: shares for name, shares in found.items() if len(shares) > 1}


def _shares(ranks: Iterable[RankFacts], values: Iterable[str]) -> Shares:
    found: Shares = {}
    for facts, value in zip(ranks, values):
        found.setdefault(value, []).append(facts)
    return found


def _evidence(differing: dict[str, Shares]) -> tuple[str, ...]:
    """Return who has which value: "torch: 2.9 on ranks 0-7 (node 0); 2.8 on ranks 8-15 (node 1)"."""
    return tuple(
        f"{name}: " + "; ".join(f"{value} on {_where(ranks)}" for value, ranks in shares.items())
        for name, shares in differing.items()
    )


def _where(ranks: list[RankFacts]) -> str:
    numbers, nodes = [facts.rank for facts in ranks], sorted({facts.node for facts in ranks})
    run = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    listed = f"{numbers[0]}-{numbers[-1]}" if run else ", ".join(map(str, numbers[:8])) + " …" * (len(numbers) > 8)
    where = f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes[:8]))}" + " …" * (len(nodes) > 8)
    return f"rank{'s' * (len(numbers) > 1)} {listed} ({where})"


def _slow(communication: Communication) -> Iterator[Finding]:
    if communication.transport != "nccl":
        return
    slow = [(exchange, told) for exchange in communication.exchanges if (told := _too_slow(exchange, communication))]
    if not slow:
        return
    evidence = [f"{exchange.name}: {told}" for exchange, told in slow[:SHOWN]] + _more([e for e, _ in slow])
    look = Fix("see the links as the driver does", "command", "nvidia-smi topo -m && nvidia-smi nvlink --status")
    message = f"{len(slow)} exchange{'s are' if len(slow) > 1 else ' is'} far slower than the link between the GPUs"
    fixes = (look, *_diagnosis(communication))
    yield engine.make_finding_by_code("ATN524", Problem(message, tuple(evidence), fixes, "communication"))


def _too_slow(exchange: CollectiveResult, communication: Communication) -> str:
    """Return in numbers how an exchange falls short of its slowest link, "" where it does not or that is not known."""
    if exchange.outcome != "ok" or not exchange.gb_per_s:
        return ""
    route = _slowest(exchange, communication)
    if route is None:
        return ""
    share = NVLINK_SHARE if route.kind.startswith("NV") else PCIE_SHARE
    if exchange.operation != "send_recv":
        share = min(share, GROUP_SHARE)
    if exchange.gb_per_s >= share * route.gb_per_s:
        return ""
    rate = f"{exchange.gb_per_s:.1f} GB/s, {100 * exchange.gb_per_s / route.gb_per_s:.0f} %"
    return f"{rate} of what {route.kind} carries one way ({route.gb_per_s:g} GB/s)"


def _slowest(exchange: CollectiveResult, communication: Communication) -> Route | None:
    """Return the slowest link that an exchange needs, None where one of them is not known."""
    ranks = exchange.ranks
    needed = {frozenset(pair) for pair in zip(ranks, (*ranks[1:], ranks[0]))}
    used = [route for route in communication.routes if frozenset((route.first, route.second)) in needed]
    if len(used) < len(needed) or not all(route.gb_per_s for route in used):
        return None
    return min(used, key=lambda route: route.gb_per_s)


def _shared_gpus(communication: Communication) -> Iterator[Finding]:
    placed = [facts for facts in communication.ranks if facts.card >= 0]
    cards = _shares(placed, [str(facts.card) for facts in placed])
    shared = [ranks for ranks in cards.values() if len(ranks) > 1]
    if shared:
        evidence = tuple(f"{_where(ranks)}: the same {ranks[0].device}" for ranks in shared)
        message = f"{sum(map(len, shared))} ranks share {len(shared)} GPU{'s' * (len(shared) > 1)}"
        fix = Fix("give each rank its own GPU", "edit", 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))')
        yield engine.make_finding_by_code("ATN525", Problem(message, evidence, (fix,), "GPUs"))
