"""Small models of any architecture: named shapes, a user's configuration cut small, real weights with `--full`."""
