"""The documents to train on: the synthetic language, and how they are packed into batches."""
