"""What an adversary tries: hostile names, lost lanes, kills; inputs, limits, secrets and foreign text."""
