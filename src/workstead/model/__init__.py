"""Domain values: frozen values and pure functions over them. No clock, no file system, no environment."""
