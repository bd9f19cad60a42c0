"""Judges an environment: rules over a snapshot of facts, and the fixes for what they find."""
