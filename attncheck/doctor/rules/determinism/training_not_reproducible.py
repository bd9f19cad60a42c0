"""Two training runs differ although the plan asks for the same bits.

What it checks: `attncheck smoke --deterministic` runs the first steps several times from one seed, on rows of one long
document, and compares the loss and every gradient bit by bit; it says where runs part first and tries what mends it.

Why it matters: a run that cannot be repeated cannot be debugged by repeating it; whoever compares two runs compares
noise.

What to do: set what smoke finds to mend it, before the job starts: FLASH_ATTENTION_DETERMINISTIC=1 reaches
transformers' flash attention, `torch.use_deterministic_algorithms(True)` reaches torch's own kernels and needs
CUBLAS_WORKSPACE_CONFIG.

Source: the measurement itself; transformers 5.17.0, modeling_flash_attention_utils.py (FLASH_ATTENTION_DETERMINISTIC);
PyTorch's notes on reproducibility.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN720", "error", lambda snapshot: (), by_engine=True)
