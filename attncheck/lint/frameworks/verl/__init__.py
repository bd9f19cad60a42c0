"""verl: reinforcement learning and fine-tuning configured with Hydra, FSDP or Megatron below.

Names, groups and defaults were read in the wheels 0.2.0.post2 to 0.9.1 (`names/verl.json`), what it does
with them in their source; each claim says where. The room's contract is one file a framework; this one has several.
"""

from __future__ import annotations

from attncheck.lint.frameworks import Framework
from attncheck.lint.frameworks.verl.given import trainer
from attncheck.lint.frameworks.verl.job import model, read
from attncheck.lint.frameworks.verl.plan import plan_settings
from attncheck.lint.frameworks.verl.writing import write

FRAMEWORK = Framework("verl", "verl", "0.9.1", trainer, model, read, write, plan_settings)
