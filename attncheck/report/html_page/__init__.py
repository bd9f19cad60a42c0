"""The report as one HTML page: `page.py` assembles it, `blocks.py` writes the blocks of its sections.

`elements.py` writes elements and escapes all text; `tables.py` and `charts.py` build on it. Besides its text the page
contains only `page.css` and `page.js`, and it loads nothing. `room.py` keeps it small for a report of any length.
"""
