"""Structured probes: inputs with exactly known results, so that no tolerance is needed.

- code: q = k = 0 and v a random ±1 code. exp(LSE) counts a query's keys; out × count is an integer sum of codes.
- heads: v is its kv head's number, dout its query head's: detects a wrong head order and a wrong group sum.
- retrieve: each query looks up one key by its code, and v spells that key's number: names the wrong (query, key).
- prefix: the second half is multiplied; causal first-half rows must keep every bit.
- poison: other documents, or padding, are multiplied (nan_poison: NaN). A document's rows must keep every bit; so must
  its gradients, except for the rounding of a reduction whose order may change.
- dropout: <dout, out> = <dv, v> if backward drops the same as forward; the share kept, and two masks from two seeds.
"""

from attncheck.attention.reference.structured_common import BackendCall, ProbeResult
from attncheck.attention.reference.structured_dropout import probe_dropout
from attncheck.attention.reference.structured_edits import probe_poison, probe_prefix
from attncheck.attention.reference.structured_keys import probe_code, probe_heads, probe_retrieve
from attncheck.core.cases import Case


def run_probe(case: Case, device: str, call: BackendCall) -> ProbeResult:
    """Return the contradictions of the probe of `case`, and the (first) outputs of the backend."""
    return PROBES[case.probe](case, device, call)


PROBES = {
    "code": probe_code,
    "heads": probe_heads,
    "retrieve": probe_retrieve,
    "prefix": probe_prefix,
    "poison": probe_poison,
    "nan_poison": probe_poison,
    "dropout": probe_dropout,
}
