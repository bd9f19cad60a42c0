"""Measures what one answer for a cluster costs node 0: merging many nodes' snapshots, and writing the report.

    python -m benchmarks.nodes [--sizes 16,256,4096] [--rounds 3] [--varied]

Each size runs in a process of its own, whose peak memory is that of the merge: it reads documents as nodes send them
(packed, 13 KiB of a machine with flash-attn) from a file, and no time of making them is counted. The nodes are the
recording of one H200 with what differs among healthy nodes (memory, dates, ranks), one node in 32 with another
transformers, one in 50 with a variable left on, one in 100 silent. `--varied` also lets every node have a memory, a
kernel and a setting of its own, so that nothing is alike.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from attncheck.cluster.merge import GatheredNodes, merge_nodes
from attncheck.cluster.packing import pack_snapshot
from attncheck.core.snapshot import Snapshot
from attncheck.report.formats import load_format
from tests import snapshots as s
from tests.cluster.snapshots import vary

FORMATS = ("text", "json", "html")


def make_node(node: int, varied: bool) -> Snapshot:
    """Return the snapshot of one node."""
    snapshot = vary(s.h200(), node)
    if node % 32 == 7:
        snapshot = s.with_package(snapshot, "transformers", "4.57.1")
    if node % 50 == 9:
        snapshot = s.with_env(snapshot, CUDA_LAUNCH_BLOCKING="1")
    if varied:
        host = replace(snapshot.host, memory_total_bytes=s.Known((500 + node) << 30), kernel=f"6.8.0-{node}")
        snapshot = s.with_env(replace(snapshot, host=host), NCCL_SOCKET_IFNAME=f"eth{node}")
    return snapshot


def write_nodes(path: Path, size: int, varied: bool) -> int:
    """Write the documents of a cluster to a file; return their bytes."""
    silent = {node: "it began, and did not answer within 180 s" for node in range(size) if node % 100 == 42}
    documents = {node: pack_snapshot(make_node(node, varied)) for node in range(size) if node not in silent}
    path.write_bytes(pickle.dumps((size, documents, silent)))
    return sum(map(len, documents.values()))


def merge_file(path: Path) -> dict[str, float]:
    """Return what merging the nodes in a file took: seconds, and the peak memory of this process in MiB."""
    size, documents, silent = pickle.loads(path.read_bytes())
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    report = merge_nodes(GatheredNodes("torchrun", size, documents, silent), profile="all")
    merged = time.perf_counter()
    lengths = {name: len(load_format(name).render(report, False)) for name in FORMATS}
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "merge_s": merged - began, "write_s": ended - merged, "peak_mib": peak, "before_mib": base,
        "html_kib": lengths["html"] / 1024,
    }  # fmt: skip


def measure(path: Path, rounds: int) -> dict[str, float]:
    """Return the medians over fresh processes."""
    command = [sys.executable, "-m", "benchmarks.nodes", "--file", str(path)]
    outputs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(rounds)]
    results = [json.loads(output) for output in outputs]
    return {name: statistics.median(result[name] for result in results) for name in results[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default="16,256,4096")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--varied", action="store_true")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file is not None:
        print(json.dumps(merge_file(options.file)))
        return
    print("| nodes | received MiB | merge s | ms a node | text, JSON, HTML s | peak MiB | before MiB | HTML KiB |")
    print("|---|---|---|---|---|---|---|---|")
    for size in map(int, options.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            received = write_nodes(Path(folder) / "nodes", size, options.varied) / (1 << 20)
            cost = measure(Path(folder) / "nodes", options.rounds)
        print(
            f"| {size} | {received:.1f} | {cost['merge_s']:.2f} | {1000 * cost['merge_s'] / size:.2f} | "
            f"{cost['write_s']:.2f} | {cost['peak_mib']:.0f} | {cost['before_mib']:.0f} | {cost['html_kib']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
