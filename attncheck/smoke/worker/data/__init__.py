"""The training documents: the synthetic language, and their packing into batches."""
