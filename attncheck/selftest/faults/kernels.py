"""Attention backends that compute wrongly, run another's kernel, differ from call to call, crash or hang."""

from attncheck.selftest.faults import Family, Fault, Sandbox
from attncheck.selftest.faults.plugins import with_backend

CASE = "dense-causal-s257-h4kv2-d64-bf16-normal"
QUICK_BASE = "sdpa_flash"  # the faster kernel, because it is repeated often
BACKEND_TEMPLATE = """
from attncheck.attention.backends import sdpa_flash, sdpa_math

def right(inputs, deterministic):
    return {base}.BACKEND.run(inputs, deterministic)

SETTINGS |= {settings}

def run(inputs, deterministic):
{body}

BACKEND = Backend("{name}", "planted by selftest", "planted", Installed, {base}.refuse, run, **SETTINGS)
"""


def backend_source(name: str, body: str, base: str = "sdpa_math", **settings: str) -> str:
    """Return the source of a backend with this `run` body, based on one of torch's kernels."""
    indented_body = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return BACKEND_TEMPLATE.format(name=name, body=indented_body, settings=settings, base=base)


def setup_parity(sandbox: Sandbox) -> None:
    """Run parity on one case; only the control measures the correct backend."""
    sandbox.arguments += ["parity", "--python", sandbox.python, "--device", sandbox.device, "--suite", "quick"]
    sandbox.arguments += ["--case", CASE, "--format", "json", "--timeout", "10"]
    with_backend("selftest_right", backend_source("selftest_right", "return right(inputs, deterministic)"))(sandbox)


def setup_determinism(sandbox: Sandbox) -> None:
    """Run determinism on six calls."""
    sandbox.arguments += ["determinism", "--python", sandbox.python, "--device", sandbox.device, "--repeat", "6"]
    sandbox.arguments += ["--format", "json"]
    source = backend_source("selftest_right", "return right(inputs, True)", QUICK_BASE)  # FLASH varies on a GPU
    with_backend("selftest_right", source)(sandbox)


PARITY = Family("parity", "parity of a correct backend", setup_parity, ("torch",), True, True, True)
DETERMINISM = Family("determinism", "determinism of a correct backend", setup_determinism, ("torch",), True, True, True)


def make_parity_fault(name: str, code: str, title: str, imitates: str, body: str, *mentions: str) -> Fault:
    """Return a backend's fault; the finding's subject is the backend's name."""
    name = f"selftest_{name}"
    return Fault(
        name, PARITY, (code,), title, imitates, with_backend(name, backend_source(name, body)), (name, *mentions)
    )


def scaled_gradient_body(name: str, factor: float = 1.05) -> str:
    """Return the body of a backend that multiplies one gradient by a factor."""
    return f"answer = right(inputs, deterministic)\nreturn replace(answer, {name}=answer.{name} * {factor})"


NONDETERMINISTIC = """
run.calls = getattr(run, "calls", 0) + 1
answer = right(inputs, True)
dv = answer.dv.clone()
dv[0, 3, 0, 5] *= 1.0 + 0.5 * (run.calls % 3 == 0)
return replace(answer, dv=dv)
"""
FAULTS = (
    make_parity_fault("scale", "ATN601", "a softmax scale five per cent too large",
          "a scale applied twice, or from another head size",
          "return right(replace(inputs, q=inputs.q * 1.05), deterministic)"),
    make_parity_fault("mask", "ATN601", "the causal mask dropped", "is_causal ignored alongside a mask",
          "return right(replace(inputs, case=replace(inputs.case, causal=False)), deterministic)"),
    make_parity_fault("dq", "ATN601", "dq five per cent too large", "a backward built for another scale",
          scaled_gradient_body("dq"), "dq"),
    make_parity_fault("dk", "ATN601", "dk five per cent too large",
          "gradients of grouped heads summed once too often", scaled_gradient_body("dk"), "dk"),
    make_parity_fault("dv", "ATN601", "dv five per cent too large", "dropout's factor not removed",
          scaled_gradient_body("dv"), "dv"),
    make_parity_fault("impostor", "ATN603", "a backend that silently runs another's kernel",
          "a silent fallback", "return sdpa_flash.BACKEND.run(inputs, deterministic)"),
    make_parity_fault("raises", "ATN604", "a kernel that raises", "an unsupported architecture",
          "raise ValueError('no luck')", "no luck"),
    make_parity_fault("dies", "ATN604", "a kernel that crashes its process", "an illegal memory access",
          "os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    make_parity_fault("hangs", "ATN604", "a kernel that never ends", "a deadlock on a semaphore", "time.sleep(1000)",
          "no answer"),
    Fault("selftest_shaky", DETERMINISM, ("ATN711", "ATN712"), "dv differs in every third call, even with determinism",
          "atomic additions in a backward; flash-attn-3 before its fix", with_backend("selftest_shaky",
                backend_source("selftest_shaky", NONDETERMINISTIC, QUICK_BASE, deterministic_switch="argument",
                      deterministic="argument")), ("selftest_shaky", "dv")),
)  # fmt: skip
