"""One answer for a cluster: every node's snapshot, gathered and judged as one.

It answers whether all nodes have the same stack, and the GPUs that the job uses. Read first: `gather.py`, then
`wire.py`.

`place.py` reads which node we are from the variables of torchrun or srun. `leader.py` and `follower.py` bring the
snapshots to node 0, using the protocol of `wire.py` and the encoding of `packing.py`. `merge.py` makes one report:
`judge.py` merges the rules' findings on each node, `differences.py` compares facts, `differ.py` and `lacking_gpus.py`
are the findings about nodes. `over_nodes.py` and `over_ray.py` connect these steps. Hosts are never named: nodes are
numbers.

Imports: every room except `cli`.
"""
