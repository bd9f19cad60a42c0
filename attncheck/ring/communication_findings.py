"""Judges the communication among ranks by their exchanges, versions and settings; it measures nothing.

Sources: NVIDIA/nccl#1788, #1672, #2077 (NVLS), #426, #733 (RoCE's GID: "Got completion with error 12"), nccl-tests#117
and accelerate's refusal for RTX 40 (peer access); pytorch#174288, #108378 (batch_isend_irecv before any collective).
"""

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.lists import group_values
from attncheck.core.results.collectives import CollectiveResult, Communication, RankFacts, Route
from attncheck.doctor import engine
from attncheck.ring import bandwidth_map
from attncheck.ring.bandwidth_map import LinkBandwidth, Outlier

_NVLS = re.compile(r"nvls|multicast", re.IGNORECASE)
_FABRIC = re.compile(r"ncclRemoteError|NET/IB|ibv_|completion with error|remote process", re.IGNORECASE)
_NVLS_GPUS = re.compile(r"H\d00|GH200|B\d00|GB\d00")
LOG = "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,P2P,SHM"
NOT_TRIED = "(not tried here; one at a time)"


def fix_failed_exchanges(communication: Communication, failed: Sequence[CollectiveResult]) -> tuple[Fix, ...]:
    """Return the settings to try, likeliest first, and how to make NCCL log more; nothing without NCCL."""
    if communication.transport != "nccl":
        return ()
    log = Fix("have NCCL log the path that it uses", "advice", LOG)
    return (*_list_settings(communication, failed), log)


def _list_settings(communication: Communication, failed: Sequence[CollectiveResult]) -> Iterator[Fix]:
    reasons = " ".join(exchange.reason for exchange in failed)
    environ = communication.ranks[0].environ if communication.ranks else {}
    spans_nodes = len({facts.node for facts in communication.ranks}) > 1
    has_nvls = any(_NVLS_GPUS.search(facts.device) for facts in communication.ranks)
    if (_NVLS.search(reasons) or (has_nvls and not spans_nodes)) and environ.get("NCCL_NVLS_ENABLE") != "0":
        yield Fix(f"disable NVLink SHARP {NOT_TRIED}", "env", "export NCCL_NVLS_ENABLE=0")
    if _FABRIC.search(reasons) or spans_nodes:
        text = "export NCCL_IB_GID_INDEX=3"
        yield Fix(f"the RoCE v2 address, if show_gids lists it at this index on every node {NOT_TRIED}", "env", text)
        yield Fix(f"over TCP, slower {NOT_TRIED}", "env", "export NCCL_IB_DISABLE=1")
    elif environ.get("NCCL_P2P_DISABLE") != "1":
        yield Fix(f"through host memory, slower {NOT_TRIED}", "env", "export NCCL_P2P_DISABLE=1")
    operations = {exchange.operation for exchange in failed}
    if operations <= {"send_recv", "ring"} and any(e.outcome == "ok" for e in communication.exchanges):
        title = f"have every rank of the group enter one collective before the first batch_isend_irecv {NOT_TRIED}"
        yield Fix(title, "edit", "torch.distributed.barrier(group=group)")


def fix_slow_network() -> tuple[Fix, ...]:
    """Return the commands that show a node's network interfaces, and which of them NCCL uses."""
    text = "nvidia-smi topo -m && ibstat && rdma link"
    return (Fix("compare state and rate of the node's network adapters with another node's", "advice", text),)


MUST_AGREE = ("torch", "NCCL", "flash-attn")
MAY_DIFFER = ("Python", "driver", "ring-flash-attn", "transformers")
MAX_SHOWN = 6
UNSET = "not set"
LINKS_FIX = Fix("list the links that the driver reports", "advice", "nvidia-smi topo -m && nvidia-smi nvlink --status")


def make_findings(communication: Communication) -> tuple[Finding, ...]:
    """Return the problems of the communication, most severe first."""
    checks = (
        _find_shared_gpus,
        _find_wrong_data,
        _find_failed_exchanges,
        _find_version_differences,
        _find_setting_differences,
        _find_slow_exchanges,
        _find_outliers,
    )
    return tuple(finding for check in checks for finding in check(communication))


def _find_wrong_data(communication: Communication) -> Iterator[Finding]:
    wrong = [exchange for exchange in communication.exchanges if exchange.wrong]
    if not wrong:
        return
    evidence = []
    for exchange in wrong[:MAX_SHOWN]:
        evidence.append(f"{exchange.name}: {exchange.wrong} of {exchange.compared} elements wrong")
        evidence += [
            f"  rank {p.rank}, element {p.index} of {p.length} ({p.dtype}): {p.got}, expected {p.expected}"
            for p in exchange.places[:MAX_SHOWN]
        ]
    evidence += _describe_rest(wrong)
    names = ", ".join(dict.fromkeys(exchange.operation for exchange in wrong))
    yield engine.make_finding_by_code(
        "ATN520",
        Problem(f"data are corrupted by {names}", tuple(evidence), _nccl_debug_fixes(communication), "communication"),
    )


def _find_failed_exchanges(communication: Communication) -> Iterator[Finding]:
    failed = [e for e in communication.exchanges if e.outcome in ("raised", "died", "timed_out")]
    if not failed:
        return
    evidence = [f"{exchange.name}: {exchange.reason}" for exchange in failed[:MAX_SHOWN]] + _describe_rest(failed)
    skipped = [exchange.name for exchange in communication.exchanges if exchange.outcome == "skipped"]
    if skipped:
        evidence.append(f"given up: {', '.join(skipped[:MAX_SHOWN])}{' …' * (len(skipped) > MAX_SHOWN)}")
    count = f"{len(failed)} of {len(communication.exchanges)} exchanges"
    message = f"{count} among {communication.world_size} ranks did not finish"
    yield engine.make_finding_by_code(
        "ATN521", Problem(message, tuple(evidence), fix_failed_exchanges(communication, failed), "communication")
    )


def _describe_rest(exchanges: list[CollectiveResult]) -> list[str]:
    return [f"… and {len(exchanges) - MAX_SHOWN} more"] if len(exchanges) > MAX_SHOWN else []


def _nccl_debug_fixes(communication: Communication) -> tuple[Fix, ...]:
    """Return the fix that makes NCCL log what it does."""
    if communication.transport != "nccl":
        return ()
    return (Fix("have NCCL log the path that it uses", "advice", LOG),)


def _find_version_differences(communication: Communication) -> Iterator[Finding]:
    ranks = communication.ranks
    for names, predicted in ((MUST_AGREE, False), (MAY_DIFFER, True)):
        differences = _find_differences(ranks, {name: [_get_version(facts, name) for facts in ranks] for name in names})
        if differences:
            message = f"ranks differ in {' and '.join(differences)}"
            fix = Fix(
                "install the same versions on every node", "manual", "use one image, or one lock file, for all nodes"
            )
            yield engine.make_finding_by_code(
                "ATN522", Problem(message, _format_differences(differences), (fix,), ", ".join(differences), predicted)
            )


def _get_version(facts: RankFacts, name: str) -> str:
    versions = {"torch": facts.torch, "NCCL": facts.nccl, "Python": facts.python, "driver": facts.driver}
    return versions[name] or "not told" if name in versions else facts.packages.get(name, "not installed")


def _find_setting_differences(communication: Communication) -> Iterator[Finding]:
    ranks = communication.ranks
    names = sorted({name for facts in ranks for name in facts.environ})
    differences = _find_differences(
        ranks, {name: [facts.environ.get(name, UNSET) for facts in ranks] for name in names}
    )
    if differences:
        message = f"ranks differ in the settings {', '.join(differences)}"
        fix = Fix(
            "set them identically for every rank", "manual", "export them in the job's script, not in a node's profile"
        )
        yield engine.make_finding_by_code(
            "ATN523", Problem(message, _format_differences(differences), (fix,), ", ".join(differences))
        )


RanksByValue = dict[str, list[RankFacts]]  # the ranks that have each value


def _find_differences(ranks: Sequence[RankFacts], values_by_name: dict[str, list[str]]) -> dict[str, RanksByValue]:
    """Return the names whose values differ between ranks, except those that may differ."""
    groups = {name: _group_ranks(ranks, values) for name, values in values_by_name.items()}
    return {name: ranks_by_value for name, ranks_by_value in groups.items() if len(ranks_by_value) > 1}


def _group_ranks(ranks: Iterable[RankFacts], values: Iterable[str]) -> RanksByValue:
    return group_values((value, facts) for facts, value in zip(ranks, values))


def _format_differences(differences: dict[str, RanksByValue]) -> tuple[str, ...]:
    """Return which ranks have which value: "torch: 2.9 on ranks 0-7 (node 0); 2.8 on ranks 8-15 (node 1)"."""
    return tuple(
        f"{name}: " + "; ".join(f"{value} on {_format_ranks(ranks)}" for value, ranks in ranks_by_value.items())
        for name, ranks_by_value in differences.items()
    )


def _format_ranks(ranks: list[RankFacts]) -> str:
    numbers, nodes = [facts.rank for facts in ranks], sorted({facts.node for facts in ranks})
    is_range = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    listed = f"{numbers[0]}-{numbers[-1]}" if is_range else ", ".join(map(str, numbers[:8])) + " …" * (len(numbers) > 8)
    listed_nodes = f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes[:8]))}" + " …" * (len(nodes) > 8)
    return f"rank{'s' * (len(numbers) > 1)} {listed} ({listed_nodes})"


def _find_slow_exchanges(communication: Communication) -> Iterator[Finding]:
    if communication.transport != "nccl":
        return
    routes = {frozenset((route.first, route.second)): route for route in communication.routes}
    slow = [
        (exchange, slowness)
        for exchange in communication.exchanges
        if (slowness := _describe_slowness(exchange, routes))
    ]
    if not slow:
        return
    evidence = [f"{exchange.name}: {slowness}" for exchange, slowness in slow[:MAX_SHOWN]] + _describe_rest(
        [e for e, _ in slow]
    )
    message = f"{len(slow)} exchange{'s are' if len(slow) > 1 else ' is'} far slower than the link between the GPUs"
    fixes = (LINKS_FIX, *_nccl_debug_fixes(communication))
    yield engine.make_finding_by_code("ATN524", Problem(message, tuple(evidence), fixes, "communication"))


def _describe_slowness(exchange: CollectiveResult, routes: Mapping[frozenset[int], Route]) -> str:
    """Return how far an exchange stays below its slowest link; "" if it does not, or if that is unknown."""
    if exchange.outcome != "ok" or not exchange.gb_per_s:
        return ""
    route = _slowest_route(exchange, routes)
    if route is None:
        return ""
    share = bandwidth_map.required_share(route.kind)
    if exchange.operation != "send_recv":
        share = min(share, bandwidth_map.GROUP_SHARE)
    if exchange.gb_per_s >= share * route.gb_per_s:
        return ""
    rate = f"{exchange.gb_per_s:.1f} GB/s, {100 * exchange.gb_per_s / route.gb_per_s:.0f} %"
    return f"{rate} of the one-way rate of {route.kind} ({route.gb_per_s:g} GB/s)"


def _slowest_route(exchange: CollectiveResult, routes: Mapping[frozenset[int], Route]) -> Route | None:
    """Return the slowest link that an exchange needs, None if one of its links is unknown."""
    ranks = exchange.ranks
    needed = {frozenset(pair) for pair in zip(ranks, (*ranks[1:], ranks[0]))}
    used = [routes[pair] for pair in needed if pair in routes]
    if len(used) < len(needed) or not all(route.gb_per_s for route in used):
        return None
    return min(used, key=lambda route: route.gb_per_s)


def _find_outliers(communication: Communication) -> Iterator[Finding]:
    """Yield ranks and nodes that are slow with every other, then single links that are slow for their kind."""
    outliers = bandwidth_map.find_outliers(communication)
    for outlier in outliers:
        yield _make_outlier_finding(outlier, communication)
    links = bandwidth_map.find_slow_links(communication, outliers)
    if links:
        evidence = [bandwidth_map.describe_link(link) for link in links[:MAX_SHOWN]]
        evidence += _describe_rest([link.exchange for link in links])
        several = f"{len(links)} links are" if len(links) > 1 else f"the link between ranks {_join_ends(links[0])} is"
        fixes = _fix_slow_links({link.kind for link in links}, communication)
        problem = Problem(f"{several} far slower than others of the same kind", tuple(evidence), fixes, "links")
        yield engine.make_finding_by_code("ATN524", problem)


def _make_outlier_finding(outlier: Outlier, communication: Communication) -> Finding:
    name = f"{outlier.unit} {outlier.number}"
    own, others = statistics.median(outlier.own_rates), statistics.median(outlier.other_rates)
    message = f"{bandwidth_map.describe_outlier(outlier)}: {own:.3g} GB/s, {others:.3g} among the others"
    evidence = [
        f"{name}, {len(outlier.own_rates)} exchanges: {_describe_rates(outlier.own_rates)}",
        f"{len(outlier.other_rates)} exchanges without it: {_describe_rates(outlier.other_rates)}",
    ]
    ranks = [facts for facts in communication.ranks if outlier.number == facts.node]
    if outlier.unit == "node" and ranks:
        evidence.append(f"node {outlier.number} runs {_format_ranks(ranks).partition(' (')[0]}")
    elif facts := next((facts for facts in communication.ranks if facts.rank == outlier.number), None):
        evidence.append(f"rank {outlier.number} is on node {facts.node}: {facts.device}")
    fixes = _fix_slow_links({outlier.kind}, communication)
    return engine.make_finding_by_code("ATN524", Problem(message, tuple(evidence), fixes, name))


def _fix_slow_links(kinds: Iterable[str], communication: Communication) -> tuple[Fix, ...]:
    if "network" in kinds:
        return (*fix_slow_network(), *_nccl_debug_fixes(communication))
    return (LINKS_FIX, *_nccl_debug_fixes(communication))


def _describe_rates(rates: Sequence[float]) -> str:
    return f"{min(rates):.3g} to {max(rates):.3g} GB/s, median {statistics.median(rates):.3g}"


def _join_ends(link: LinkBandwidth) -> str:
    return f"{link.first} and {link.second}"


def _find_shared_gpus(communication: Communication) -> Iterator[Finding]:
    ranks_with_gpu = [facts for facts in communication.ranks if facts.card >= 0]
    cards = _group_ranks(ranks_with_gpu, [str(facts.card) for facts in ranks_with_gpu])
    shared = [ranks for ranks in cards.values() if len(ranks) > 1]
    if shared:
        evidence = tuple(f"{_format_ranks(ranks)}: the same {ranks[0].device}" for ranks in shared)
        message = f"{sum(map(len, shared))} ranks share {len(shared)} GPU{'s' * (len(shared) > 1)}"
        fix = Fix("give each rank its own GPU", "edit", 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))')
        yield engine.make_finding_by_code("ATN525", Problem(message, evidence, (fix,), "GPUs"))
