"""Rules about attncheck itself."""
