"""Rules about ring-flash-attn."""
