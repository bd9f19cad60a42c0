"""Turns of conversations: their file in a rehearsal's folder, and how rows of a data set name roles and thoughts."""

FILE = "conversations.json"  # next to the model
THINK, THOUGHT = "<think>\n", "\n</think>\n\n"
SHAREGPT = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}
Turn = tuple[str, str]  # role and text
Conversation = tuple[Turn, ...]
