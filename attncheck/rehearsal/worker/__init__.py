"""What a rehearsal computes in a worker: the small model, its tokenizer and documents before; the reference
afterwards."""
