"""verl: reinforcement learning and fine-tuning configured with Hydra, on FSDP or Megatron.

Names, groups and defaults were read in the wheels 0.2.0.post2 to 0.9.1 (`names/verl.json`), their effects in the
source; each claim says where.
"""

from functools import partial

from attncheck.lint.fields.releases import list_releases
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.frameworks.verl.given import find_trainer
from attncheck.lint.frameworks.verl.job import find_model, read_job
from attncheck.lint.frameworks.verl.tables import find_release
from attncheck.lint.frameworks.verl.writing import write_settings

FRAMEWORK = Framework(
    "verl",
    "verl",
    "0.9.1",
    find_trainer,
    find_model,
    read_job,
    write_settings,
    defer("lint.frameworks.verl.plan:plan_settings"),
    cut=defer("lint.frameworks.verl.rehearsal:cut"),
    releases=partial(list_releases, "verl"),
    requires=lambda version: find_release(version).required_packages(),
    own_programs=("verl.",),
)
