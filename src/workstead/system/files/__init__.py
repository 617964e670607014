"""Files beneath an open directory that cannot be left."""
