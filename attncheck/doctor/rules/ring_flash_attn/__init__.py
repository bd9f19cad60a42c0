"""ring_flash_attn."""
