"""Trains small models in a worker the way a plan says, and checks their results.

`data` makes documents with a known entropy, or reads the user's, and packs them into rows. `models` builds a small
model of any architecture. `testbed` combines these. `checks` has a file for each check, `ranks` the check across ranks.
"""
