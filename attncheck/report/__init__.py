"""A report in any format.

Answers: how does a person, a CI or a program read it? A `Report` (`attncheck.core.report`) holds findings and one
section for each thing that was done; a format renders all of it, a view one section.

To add a format: a module in `formats/` called as `--format` calls it, with its record `FORMAT`. To show a section: a
module in `sections/` called like it, with its `VIEW`, and one in `html_page/panels/` with its `PANEL`.

Read first: `formats/markdown.py`, `sections/determinism.py`, then `formats/text.py`. `document.py` is the JSON, both
ways, `schema.py` its schema; `outputs.py` writes files, `fingerprints.py` says which finding is the same one
tomorrow, `locations.py` in which line of a project it stands.

`html_page/` is the page of `--format html`, `bug_report.py` the text of an issue.

Imports: `core`, and of the other rooms what renders a rule's page; it asks nothing and measures nothing. No torch.
"""
