"""The report as one HTML page: `page.py` puts it together, `panels/` shows one section of a report each.

`elements.py` writes elements, and escapes all that is not markup of ours; `tables.py` and `charts.py` stand on it.
`page.css` and `page.js` are the whole of what the page carries beside its text: it loads nothing. `room.py` keeps it
small, however long the report is.

To show a section: a module in `panels/` called like it, with its function `panel`.
"""
