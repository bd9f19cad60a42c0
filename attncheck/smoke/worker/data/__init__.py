"""The documents to train on: the synthetic language or the user's own, and how they are packed into batches."""
