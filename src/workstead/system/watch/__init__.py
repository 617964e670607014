"""Watch a tree for changes."""
