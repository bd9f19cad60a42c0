"""Rules about transformers and its trainers."""
