"""Attention backends: how each is called, the inputs of a case, and the float64 reference they are judged by."""
