"""Trains small models inside a worker the way a plan says, and checks what they compute.

`data` makes documents with a known entropy, or reads the user's, and packs them into rows; `models` builds a small
model of any architecture; `testbed` holds these together; `checks` has a file for each check, `ranks` the one over
ranks.
"""
