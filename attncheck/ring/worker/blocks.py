"""The worker's task that times the blocks of a ring's schemes on one device, one after another."""

from collections.abc import Callable
from typing import Any

from attncheck.attention import backends
from attncheck.core import codec
from attncheck.core.results.timings import RATES_ITEM
from attncheck.measure.worker.tasks import make_answer, read_cases

SECONDS = {"cuda": (0.1, 0.2), "cpu": (0.1, 0.15)}  # the longest warm-up and measurement of one block


def time_blocks(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Time each case of the message with its backend; `RATES_ITEM` measures a matrix product and a copy."""
    from attncheck.attention.device import describe_exception, is_out_of_memory, open_device
    from attncheck.measure.worker.device_rates import measure_rates

    device, cases = open_device(message, send), read_cases(message)
    backend = backends.load()[0][message["backend"]]
    for item in message["items"]:
        send({"started": item})
        if item == RATES_ITEM:
            rates = codec.to_plain(measure_rates(device.kind, message["dtype"]))
            send(make_answer(item, {"rates": rates, "memory_bytes": _total_memory(device.kind)}))
            continue
        reason = backend.refuse(cases[item], device)
        if reason:
            send(make_answer(item, {"outcome": "refused", "reason": reason}))
            continue
        try:
            ms, interval_ms = _time_case(backend.run, cases[item], device.kind)
            send(make_answer(item, {"outcome": "ok", "ms": ms, "interval_ms": interval_ms}))
        except Exception as error:  # the kernel's error is the result; the next block may run
            outcome = "out_of_memory" if is_out_of_memory(error) else "raised"
            send(make_answer(item, {"outcome": outcome, "reason": describe_exception(error)}))


def _total_memory(kind: str) -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if kind == "cuda" else 0


def _time_case(run: Callable[[Any, bool], Any], case: Any, kind: str) -> tuple[float, float]:
    """Return the median milliseconds of a case, and half of its 95 % interval."""
    from attncheck.attention.inputs import make_inputs
    from attncheck.measure.statistics import half_width
    from attncheck.measure.worker.clock import Budget, time_calls
    from attncheck.measure.worker.training_calls import training_step_calls

    inputs = make_inputs(case, kind)
    with training_step_calls():
        times = time_calls(lambda: run(inputs, False), kind, Budget(*SECONDS[kind]))
    return round(times.median_ms, 5), round(half_width(times.times_ms), 5)
