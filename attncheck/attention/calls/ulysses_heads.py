"""The case that a Ulysses rank computes between the all-to-alls, and the SDPA backend that computes it."""

from dataclasses import replace

from attncheck.core.cases import Case


def local_case(case: Case) -> Case:
    """Return the case that each rank computes between the all-to-alls: all tokens, its share of the heads."""
    n = case.context_parallel_size
    kv_heads = max(1, case.num_kv_heads // n)
    return replace(case, context_parallel_size=1, num_heads=case.num_heads // n, num_kv_heads=kv_heads)


def sdpa_backend(case: Case, device: str) -> str:
    """Return the name of the SDPA backend for the attention between the all-to-alls."""
    return "EFFICIENT_ATTENTION" if device == "cuda" and case.needs_mask else "FLASH_ATTENTION"
