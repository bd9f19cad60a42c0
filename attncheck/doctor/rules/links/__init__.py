"""Names that one installed package takes from another that no longer has them."""
