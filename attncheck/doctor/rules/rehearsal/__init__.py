"""The user's own launch, cut small and run: its batches, documents, loss and gradients against the truth."""
