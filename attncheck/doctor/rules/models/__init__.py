"""Rules about the model."""
