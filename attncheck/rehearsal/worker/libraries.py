"""Imports the libraries of the rehearsal's workers, offline; they are forked from a process that has done so."""

import importlib

from attncheck.smoke.worker.models import build

MODULES = ("torch", "transformers.modeling_utils", "transformers.models.llama.modeling_llama")

build.stay_offline()
build.leave_out("sklearn", "scipy")  # a second of processor time
for module in MODULES:
    importlib.import_module(module)
