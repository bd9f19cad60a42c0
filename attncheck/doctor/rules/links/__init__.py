"""Rules about names that packages import from each other."""
