"""Rules about packing and padding."""
