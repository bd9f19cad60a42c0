"""Rules about the flash-attn packages."""
