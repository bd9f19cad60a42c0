"""The task of a worker that times backends on one device, one after another."""

import sys
from collections.abc import Callable
from typing import Any, cast

from attncheck.attention import backends
from attncheck.core import codec
from attncheck.core.results.timings import RATES_ITEM, TimedMode
from attncheck.measure.worker.tasks import make_answer, read_cases
from attncheck.measure.worker.turns import hold_turn


def bench(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Time backends; an item is "backend case@mode", or `RATES_ITEM` for the device's matrix product and copy.

    Only one of several workers measures. The next has imported torch by then, and opens the device when its turn comes.
    """
    from attncheck.attention.device import open_device
    from attncheck.attention.memory import release_cached_memory
    from attncheck.measure.worker.bench_session import BenchSession
    from attncheck.measure.worker.builds import with_builds
    from attncheck.measure.worker.device_rates import measure_rates
    from attncheck.measure.worker.session import is_fatal

    known, cases = backends.load()[0], read_cases(message)
    with hold_turn(message["folder"], lambda: send({"waiting": "turn"})):
        device = with_builds(open_device(message, send))
        session = BenchSession(device, tuple(known.values()), message["seconds"], message["dtype"])
        for item in message["items"]:
            send({"started": item})
            if item == RATES_ITEM:
                send(make_answer(item, codec.to_plain(measure_rates(device.kind, message["dtype"]))))
                continue
            backend, _, case_and_mode = item.partition(" ")
            name, _, mode = case_and_mode.partition("@")
            run, timing = session.measure(known[backend], cases[name], cast(TimedMode, mode))
            send(make_answer(item, {"run": codec.to_plain(run), "timing": codec.to_plain(timing)}))
            if is_fatal(run):
                sys.exit("the device no longer responds")
        release_cached_memory(device.kind)  # the next worker checks the free memory
