"""Small models of any architecture: named stand-ins, a user's configuration scaled down, real weights with `--full`."""
