"""The probes: they collect facts about an environment and never judge them."""
