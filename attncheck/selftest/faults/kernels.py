"""Attention kernels that compute the wrong thing, another's thing, something else each time, or nothing any more."""

from __future__ import annotations

from attncheck.selftest.faults import Family, Fault, Ground
from attncheck.selftest.faults.plugins import backend

CASE = "dense-causal-s257-h4kv2-d64-bf16-normal"
QUICK = "sdpa_flash"  # repeated often: the quicker kernel
MATH = """
from attncheck.attention.backends import sdpa_flash, sdpa_math

def call(case):
    return sdpa_math.call(case)

def right(inputs, deterministic):
    return {base}.run(inputs, deterministic)

MORE |= {more}

def run(inputs, deterministic):
{body}

BACKEND = Backend("{name}", "planted by selftest", "planted", Found, {base}.refuse, run, call, **MORE)
"""


def source(name: str, body: str, base: str = "sdpa_math", **more: str) -> str:
    """Return the module of a backend whose `run` has this body, made around one of torch's kernels."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return MATH.format(name=name, body=lines, more=more, base=base)


def lay_parity(ground: Ground) -> None:
    """Ask parity about one case; the backend that is right is asked about in the control alone."""
    ground.words += ["parity", "--python", ground.python, "--device", ground.device, "--suite", "quick"]
    ground.words += ["--case", CASE, "--format", "json", "--timeout", "10"]
    backend("selftest_right", source("selftest_right", "return right(inputs, deterministic)"))(ground)


def lay_determinism(ground: Ground) -> None:
    """Ask determinism about six calls."""
    ground.words += ["determinism", "--python", ground.python, "--device", ground.device, "--repeat", "6"]
    ground.words += ["--format", "json"]
    backend("selftest_right", source("selftest_right", "return right(inputs, deterministic)", QUICK))(ground)


PARITY = Family("parity", "parity of a backend that is right", lay_parity, ("torch",), True, True, True)
DETERMINISM = Family(
    "determinism", "determinism of a backend that is right", lay_determinism, ("torch",), True, True, True
)


def wrong(name: str, code: str, title: str, imitates: str, body: str, *says: str) -> Fault:
    """Return the fault of a backend; the finding's subject is its name."""
    name = f"selftest_{name}"
    return Fault(name, PARITY, (code,), title, imitates, backend(name, source(name, body)), (name, *says))


def gradient(name: str, factor: float = 1.05) -> str:
    """Return the body of a backend that multiplies one gradient."""
    return f"answer = right(inputs, deterministic)\nreturn replace(answer, {name}=answer.{name} * {factor})"


SHAKY = """
run.calls = getattr(run, "calls", 0) + 1
answer = right(inputs, deterministic)
dv = answer.dv.clone()
dv[0, 3, 0, 5] *= 1.0 + 0.5 * (run.calls % 3 == 0)
return replace(answer, dv=dv)
"""
FAULTS = (
    wrong("scale", "ATN601", "a softmax scale five per cent too large", "a scale given twice, or by another head size",
          "return right(replace(inputs, q=inputs.q * 1.05), deterministic)"),
    wrong("mask", "ATN601", "the causal mask dropped", "is_causal ignored beside a mask",
          "return right(replace(inputs, case=replace(inputs.case, causal=False)), deterministic)"),
    wrong("dq", "ATN601", "dq five per cent too large", "a backward built for another scale", gradient("dq"), "dq"),
    wrong("dk", "ATN601", "dk five per cent too large", "gradients of grouped heads added up once too often",
          gradient("dk"), "dk"),
    wrong("dv", "ATN601", "dv five per cent too large", "dropout's factor left in", gradient("dv"), "dv"),
    wrong("impostor", "ATN603", "a backend that runs another's kernel in silence", "a fallback that nobody is told of",
          "return sdpa_flash.run(inputs, deterministic)"),
    wrong("raises", "ATN604", "a kernel that raises", "an unsupported architecture",
          "raise ValueError('no luck')", "no luck"),
    wrong("dies", "ATN604", "a kernel that crashes its process", "an illegal memory access",
          "os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    wrong("hangs", "ATN604", "a kernel that never ends", "a deadlock on a semaphore", "time.sleep(1000)", "no answer"),
    Fault("selftest_shaky", DETERMINISM, ("ATN711", "ATN712"), "dv differs in every third call, determinism or not",
          "atomic additions in a backward; flash-attn-3 before its fix",
          backend("selftest_shaky", source("selftest_shaky", SHAKY, QUICK, switch="argument",
                deterministic="argument")),
          ("selftest_shaky", "dv")),
)  # fmt: skip
