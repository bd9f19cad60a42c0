"""The task of a smoke worker: runs checks of several models and plans, and sends the `CheckResult` of each."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from attncheck.core import codec
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult
from attncheck.smoke import checks

Send = Callable[[dict[str, Any]], None]


def smoke(message: dict[str, Any], send: Send) -> None:
    """Run a job's items "number:check"; `attempts` has the model's name and the plan of each number.

    The plans of one job have the same environment variables, which are set before torch is imported.
    """
    runs = [(name, codec.read(Plan, plan)) for name, plan in message["attempts"]]
    os.environ.update(dict(runs[0][1].environ))
    from attncheck.smoke.worker.models import build

    build.stay_offline()
    from attncheck.attention.device import open_device

    device = open_device(message, send)
    known_checks, testbeds = checks.load()[0], TestbedCache(message, device.kind, send)
    for item in message["items"]:
        number, _, check_name = item.partition(":")
        send({"started": item})
        started = time.monotonic()
        name, plan = runs[int(number)]
        try:
            result = run_check(known_checks[check_name], partial(testbeds.get, name, plan))
        except build.Unbuildable as error:  # the user's model, not a check of it
            send({"unanswered": str(error)})
            return
        seconds = round(time.monotonic() - started, 3)
        send({"item": item, "answer": codec.to_plain(replace(result, check=check_name, seconds=seconds))})


class TestbedCache:
    """The testbeds of a worker, each made when it is first needed; only the last one is kept."""

    def __init__(self, message: dict[str, Any], device: str, send: Send) -> None:
        self._message, self._device, self._send = message, device, send
        self._key: tuple[str, Plan] | None = None
        self._testbed: Any = None

    def get(self, name: str, plan: Plan) -> Any:
        """Return the testbed of a model under a plan. Raises `build.Unbuildable`."""
        if self._key != (name, plan):
            from attncheck.smoke.worker.models import build
            from attncheck.smoke.worker.testbed import Testbed

            source = build.load_architecture(name, self._message.get("full", False))
            self._testbed = Testbed(source, plan, self._device, self._send)
            self._key = (name, plan)
        return self._testbed


def run_check(check: checks.SmokeCheck, make_testbed: Callable[[], Any]) -> CheckResult:
    """Run a check on a testbed; an exception becomes the result's outcome. Raises `Unbuildable`."""
    import torch

    from attncheck.attention.device import describe_exception, is_out_of_memory
    from attncheck.smoke.worker.models.build import Unbuildable
    from attncheck.smoke.worker.shims import applied_shims

    try:
        testbed = make_testbed()
        with applied_shims(testbed.plan):
            return check.run(testbed)
    except Unbuildable:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a model, a kernel or a compiler may raise anything
        if is_out_of_memory(error):
            return CheckResult(
                check.name, "out_of_memory", f"{describe_exception(error)}; try a smaller --max-length or --batch"
            )
        return CheckResult(check.name, "raised", describe_exception(error))
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
