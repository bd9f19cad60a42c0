"""The NVIDIA driver is too old for the CUDA that torch was built with.

What it checks: the driver's version against the minimum of torch's CUDA major version. Within one major version a
newer CUDA runs on an older driver (minor-version compatibility); across majors it does not.

Why it matters: `torch.cuda.is_available()` turns False with no more than a warning, or the first CUDA call raises
"The NVIDIA driver on your system is too old". pip pulls a newer CUDA major in silently when it upgrades torch.

What to do: update the driver, or install a torch built for the CUDA that this driver serves. On data-centre GPUs
NVIDIA's cuda-compat package bridges one major version.

Source: NVIDIA CUDA Toolkit release notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
Version Compatibility"; sgl-project/sglang#11395.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from attncheck.facts import need
from attncheck.findings import Fix, Problem
from attncheck.knowledge.cuda import MINIMUM_DRIVER
from attncheck.rules import Rule
from attncheck.snapshot import Snapshot


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the driver is below the minimum for torch's CUDA."""
    driver = need(snapshot.driver, "the NVIDIA driver")
    cuda = need(need(snapshot.torch, "torch").cuda, "torch's CUDA version")
    minimum = MINIMUM_DRIVER.get(int(cuda.split(".")[0]))
    if minimum is None or Version(driver.version) >= Version(minimum):
        return
    yield Problem(
        message=f"driver {driver.version} is too old for CUDA {cuda}, which needs {minimum} or newer",
        subject=f"driver {driver.version}",
        evidence=(f"torch is built for CUDA {cuda}", f"driver {driver.version}"),
        fixes=(Fix(f"update the NVIDIA driver to {minimum} or newer", "manual", f"NVIDIA driver >= {minimum}"),),
    )


RULE = Rule("ATN201", "error", check)
