"""Small models of any architecture: named shapes, a user's configuration scaled down, real weights with `--full`."""
