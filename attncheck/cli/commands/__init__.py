"""One module a command, holding its record `COMMAND`; each is imported when it is named."""
