"""Two ranks run on the same GPU.

What it checks: the PCI address of every rank's GPU.

Why it matters: NCCL refuses such a group ("Duplicate GPU detected"); where it does not, ranks wait for each other's
memory and time.

What to do: start as many ranks as there are GPUs; give each rank its own with
`torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything is allocated; see that CUDA_VISIBLE_DEVICES is
not the same single GPU for all.

Source: what the ranks tell; NCCL 2.20 ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10", as in
verl-project/verl#161).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN525", "error", lambda snapshot: (), by_engine=True)
