"""What commands measured or read: plain data, and the section of a report that holds it.

A module with a `SECTION` is the part of one command in a report; the others hold what several of them share.
"""
