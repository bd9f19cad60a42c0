"""The case that one rank of Ulysses attends between the all-to-alls, and which SDPA backend attends."""

from dataclasses import replace

from attncheck.core.cases import Case


def local_case(case: Case) -> Case:
    """Return the case that each rank attends between the all-to-alls: all tokens, its share of the heads."""
    n = case.context_parallel_size
    kv_heads = max(1, case.num_kv_heads // n)
    return replace(case, context_parallel_size=1, num_heads=case.num_heads // n, num_kv_heads=kv_heads)


def sdpa_backend(case: Case, device: str) -> str:
    """Return the name of the SDPA backend that attends."""
    return "EFFICIENT_ATTENTION" if device == "cuda" and case.needs_mask else "FLASH_ATTENTION"
