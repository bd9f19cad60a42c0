"""Lets a script that freezes parameters by their names do so with more layers than the small model has, in a fork.

A name such as "layers.1" is also the beginning of "layers.10". The fork continues the script with a model of the same
class without values, until it does something else than to go through parameters.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import re
import signal
import sys
from typing import Any

from .absent import read_scripts
from .continuing import can_fork, leave_records, wait_for
from .relations import report
from .script_code import find_script_frame, name_line

LAYERS = 24
SECONDS = 1  # of the fork
FREEZES = re.compile(r"named_parameters(?s:.*)requires_grad")
ASKED: list[Any] = []  # models


def ask_deeper(recorder: Any, model: Any) -> None:
    """Continue a script in a fork with more layers of the first model that it loads, if it freezes by names."""
    is_asked = "ATTNCHECK_CONTINUES" in os.environ and not ASKED and can_fork()
    count = getattr(model.config, "num_hidden_layers", LAYERS)
    frame = find_script_frame(sys._getframe(1))
    if is_asked and count < LAYERS and frame is not None and FREEZES.search(read_scripts()):
        ASKED.append(model)
        if process := os.fork():
            wait_for(process)
        else:
            _continue(recorder, model, name_line(frame))


def _continue(recorder: Any, model: Any, line: str) -> None:
    """Put layers into a fork's model, and end the fork at the next step of its script."""
    try:
        import torch
        from torch.utils.data import DataLoader

        leave_records()
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = LAYERS
        if isinstance(getattr(config, "layer_types", None), list):
            config.layer_types = (config.layer_types * LAYERS)[:LAYERS]
        with torch.device("meta"):
            deeper = type(model)(config)
        vars(model).clear()
        vars(model).update(vars(deeper))

        def end(*arguments: Any, **options: Any) -> None:
            with contextlib.suppress(Exception):
                if text := find_longer_names(model):
                    report(recorder.folder, "update", warnings=[f"{text} (the model is loaded in {line})"])
            os._exit(0)

        base: Any = torch.nn.Module
        owners: list[Any] = [torch.optim.Optimizer, DataLoader]
        for place, name in (("transformers.trainer", "Trainer"), ("datasets.arrow_dataset", "Dataset")):
            owners += [getattr(sys.modules[place], name)] if place in sys.modules else []
        for owner in owners:
            owner.__init__ = end
        base.__call__, sys.excepthook = end, end
        base.to = lambda self, *arguments, **options: self
        atexit.register(end)
        signal.signal(signal.SIGALRM, end)
        signal.alarm(SECONDS)
    except BaseException:
        os._exit(1)


def find_longer_names(model: Any) -> str:
    """Return how later layers are frozen as those whose numbers begin theirs, "" if they are not."""
    layers: dict[int, set[str]] = {number: set() for number in range(LAYERS)}
    for name, parameter in model.named_parameters():
        number = re.search(r"\.(\d+)\.", name)
        if number and int(number[1]) < LAYERS and not parameter.requires_grad:
            layers[int(number[1])].add(name[number.end() :])
    is_begun = all(layers[number] == layers[int(str(number)[0])] for number in range(10, LAYERS))
    if not is_begun or layers[9] == layers[10]:
        return ""
    frozen = [str(number) for number in range(10) if layers[number]]
    more = sum(bool(layers[number]) for number in range(10, LAYERS))
    return (
        f"names that freeze layers {', '.join(frozen)} also begin the names of {more} others if a model has {LAYERS} "
        'layers, as "layers.1" begins "layers.10": end them with a dot'
    )
