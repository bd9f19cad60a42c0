"""One answer for a cluster: every node's snapshot, gathered and judged as one.

Answers: do all nodes have the same stack, and the GPUs that the job takes? Read first: `gather.py`, then `wire.py`.

`place.py` reads which node we are from what torchrun or srun set; `leader.py` and `follower.py` bring the snapshots to
node 0, in the words of `wire.py`, packed by `packing.py`; `merge.py` makes one report of them: `judge.py` merges what
the rules find on each node, `differences.py` compares facts, `differ.py` and `lacking_gpus.py` are the findings about
nodes. `over_nodes.py` and `over_ray.py` bring it together. No host is named anywhere: nodes are numbers.

Imports: every room but `cli`.
"""
