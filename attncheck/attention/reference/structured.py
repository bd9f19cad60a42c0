"""Structured probes: inputs whose results are known exactly, so that nothing is left to a tolerance.

- code: q = k = 0 and v a random ±1 code: exp(LSE) counts the keys a query sees, out × count is an integer sum of codes.
- heads: v is its kv head's number, dout its query head's: wrong head order, wrong group sum.
- retrieve: each query looks up one key by its code, v spells that key's number: names the (query, key) that is wrong.
- prefix: the second half is multiplied; causal first-half rows must keep every bit.
- poison: other documents, or padding, are multiplied (nan_poison: NaN); a document's rows must keep every bit, its
  gradients too, up to the rounding of a reduction whose order may change.
- dropout: <dout, out> = <dv, v> when backward drops what forward dropped; the share kept, and two masks from two seeds.
"""

from attncheck.attention.reference.structured_common import BackendCall, ProbeResult
from attncheck.attention.reference.structured_dropout import probe_dropout
from attncheck.attention.reference.structured_edits import probe_poison, probe_prefix
from attncheck.attention.reference.structured_keys import probe_code, probe_heads, probe_retrieve
from attncheck.core.cases import Case


def run_probe(case: Case, device: str, call: BackendCall) -> ProbeResult:
    """Return what contradicts the probe of `case`, and the (first) outputs of the backend."""
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
