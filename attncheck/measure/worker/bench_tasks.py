"""The task of a worker that times backends on one device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from attncheck.attention import backends
from attncheck.core import codec
from attncheck.core.results.timings import TimedMode
from attncheck.measure.worker.tasks import make_answer, read_cases


def bench(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Time one backend, an item being a case and a mode, "case@mode"; the device's plain work where none is named."""
    from attncheck.attention.device import open_device
    from attncheck.measure.worker.builds import with_builds

    device = with_builds(open_device(message, send))
    from attncheck.measure.worker.bench_session import BenchSession
    from attncheck.measure.worker.device_rates import measure_rates
    from attncheck.measure.worker.session import is_fatal

    known, cases = backends.load()[0], read_cases(message)
    if not message["backend"]:
        send({"started": message["items"][0]})
        send(make_answer(message["items"][0], codec.to_plain(measure_rates(device.kind, message["dtype"]))))
        return
    session = BenchSession(
        known[message["backend"]], device, tuple(known.values()), message["seconds"], message["dtype"]
    )
    for item in message["items"]:
        send({"started": item})
        name, _, mode = item.partition("@")
        run, timing = session.measure(cases[name], cast(TimedMode, mode))
        send(make_answer(item, {"run": codec.to_plain(run), "timing": codec.to_plain(timing)}))
        if is_fatal(run):
            sys.exit("the device does not answer any more")
