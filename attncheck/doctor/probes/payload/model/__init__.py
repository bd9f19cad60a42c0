"""The model probes: config.json, tokenizer files, remote code, and the installed transformers' view of them."""
