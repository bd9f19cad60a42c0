"""Probes collect facts about an environment and never judge them."""
