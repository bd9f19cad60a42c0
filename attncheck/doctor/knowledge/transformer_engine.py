"""TransformerEngine releases and the flash-attn that they use.

Source: the wheels of transformer-engine 1.13.0 to 2.20.2 (`transformer_engine/pytorch/attention.py`, since 2.2
`pytorch/attention/dot_product_attention/utils.py`: version_required, max_version and how they are compared), read on
2026-11-21. tests/doctor/test_knowledge_wheels.py derives the table again.
"""

from packaging.version import Version

# First TransformerEngine version -> the flash-attn it uses. On Blackwell the oldest is 2.7.3 since 2.1.
COMPATIBLE_FLASH_ATTN: dict[str, str] = {
    "1.13": ">=2.1.1,<=2.6.3",
    "2.1": ">=2.1.1,<=2.7.4.post1",
    "2.6": ">=2.1.1,<=2.8.1",
    "2.10": ">=2.1.1,<=2.8.3",
    "2.19": ">=2.1.1,<2.8.4",
}
LAST_RELEASE_READ = "2.20.2"  # the newest release that was read


def compatible_flash_attn(engine: Version) -> str | None:
    """Return the flash-attn that TransformerEngine `engine` uses; None for a release older than the table."""
    return next((row for since, row in reversed(COMPATIBLE_FLASH_ATTN.items()) if engine >= Version(since)), None)
