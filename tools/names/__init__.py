"""Generators of attncheck/lint/names, one for each table: they read released wheels. `make names` runs them."""
