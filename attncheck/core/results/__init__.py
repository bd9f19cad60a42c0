"""What commands measured or read: plain data, and the section of a report that holds it.

A module with a `SECTION` is one command's part of a report; the others hold data that several of them share.
"""
