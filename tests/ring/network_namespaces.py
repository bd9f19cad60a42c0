"""Runs doctor on four ranks, each in its own network on one bridge; that of one rank may be slow.

`unshare -n python network_namespaces.py RANK` writes rank 0's report as JSON; RANK sends at 100 Mbit/s, "none" does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

RANKS = 4
SLOW = "root tbf rate 100mbit burst 64kb latency 50ms"


def can_make_namespaces() -> bool:
    """Return whether this process may make networks of its own and slow one down."""
    if not all(map(shutil.which, ("unshare", "ip", "tc"))):
        return False
    steps = ("ip link add br0 type bridge", "ip link add v0 type veth peer name n0", f"tc qdisc add dev n0 {SLOW}")
    script = " && ".join((*steps, "hostname node0"))
    return subprocess.run(["unshare", "-n", "-u", "sh", "-c", script], capture_output=True).returncode == 0


def start_rank(rank: int, slow: str) -> subprocess.Popen[bytes]:
    """Start a rank that waits for a line on its standard input, and give it its end of a cable."""
    device = f"n{rank}"
    steps = [f"hostname node{rank}", "read go", "ip link set lo up", f"ip link set {device} up"]
    steps.append(f"ip addr add 10.9.0.{rank + 1}/24 dev {device}")
    steps += [f"tc qdisc add dev {device} {SLOW}"] * (str(rank) == slow)
    steps.append(f"exec {sys.executable} -m attncheck doctor --lane static --ring-size {RANKS} --format json")
    environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    environ |= {"MASTER_ADDR": "10.9.0.1", "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": device}
    process = subprocess.Popen(
        ["unshare", "-n", "-u", "sh", "-c", "; ".join(steps)],
        stdin=subprocess.PIPE,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        env={**environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    own = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{process.pid}/ns/net") == own:
        time.sleep(0.01)
    run_ip(f"link add v{rank} type veth peer name {device}")
    run_ip(f"link set {device} netns {process.pid}")
    run_ip(f"link set v{rank} master br0 up")
    return process


def run_ip(arguments: str) -> None:
    """Run `ip`. Raises `CalledProcessError`."""
    subprocess.run(["ip", *arguments.split()], check=True)


def main(slow: str) -> None:
    """Lay the bridge, start the ranks, and wait for them."""
    run_ip("link set lo up")
    run_ip("link add br0 type bridge")
    run_ip("link set br0 up")
    processes = [start_rank(rank, slow) for rank in range(RANKS)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    for process in processes:
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1])
