"""Imports the libraries of the rehearsal's workers, offline; they are forked from a process that has done so."""

import importlib

from attncheck.smoke.worker.models import build

MODULES = ("torch", "transformers.modeling_utils", "transformers.models.llama.modeling_llama")

build.stay_offline()
# a second of processor time; and two: `save_pretrained` imports DeepSpeed to unwrap a model (accelerate 1.15.0)
build.leave_out("sklearn", "scipy", "deepspeed")
for module in MODULES:
    importlib.import_module(module)
