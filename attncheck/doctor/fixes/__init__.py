"""Fixes written for the examined environment."""

from attncheck.doctor.fixes.flash_attn import (
    available_memory_gib,
    avoid_flash_attn,
    build_flash_attn,
    find_published_wheel,
    flash_attn_fixes,
    install_flash_attn_package,
    max_compile_jobs,
    missing_build_tools,
    missing_dependencies,
    needs_source_build,
)
from attncheck.doctor.fixes.install import install_packages, set_attn_implementation
from attncheck.doctor.fixes.model import change_transformers, disable_ring_attention, use_other_attention
from attncheck.doctor.fixes.torch import (
    TRITON_DISTRIBUTIONS,
    install_companion,
    reinstall_from_own_index,
    reinstall_torch,
    required_triton,
)

__all__ = [
    "TRITON_DISTRIBUTIONS",
    "available_memory_gib",
    "avoid_flash_attn",
    "build_flash_attn",
    "change_transformers",
    "disable_ring_attention",
    "find_published_wheel",
    "flash_attn_fixes",
    "install_companion",
    "install_flash_attn_package",
    "install_packages",
    "max_compile_jobs",
    "missing_build_tools",
    "missing_dependencies",
    "needs_source_build",
    "reinstall_from_own_index",
    "reinstall_torch",
    "required_triton",
    "set_attn_implementation",
    "use_other_attention",
]
