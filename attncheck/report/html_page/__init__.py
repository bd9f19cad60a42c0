"""The report as one HTML page: `page.py` puts it together, `blocks.py` writes the blocks of its sections.

`elements.py` writes elements, and escapes all text; `tables.py` and `charts.py` are built from them. `page.css` and
`page.js` are all that the page carries next to its text: it loads nothing. `room.py` keeps it small, however long the
report is.
"""
