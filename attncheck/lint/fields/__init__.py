"""Settings that are fields of dataclasses and schemas: their names by release, their values, and edits of them."""
