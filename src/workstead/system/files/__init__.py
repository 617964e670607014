"""File operations beneath an open directory that paths cannot escape."""
