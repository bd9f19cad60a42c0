"""A rehearsal's work in a worker: the small model, tokenizer and documents before; the reference afterwards."""
