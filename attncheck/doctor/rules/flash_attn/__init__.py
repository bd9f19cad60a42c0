"""flash_attn."""
