"""Programs for working on attncheck: what keeps its tables up to date, and what measures it on unseen launches."""
