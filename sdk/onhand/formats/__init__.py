"""Model files: readers that never trust what they read."""
