"""What things are: frozen values and pure functions over them. No clock, no file, no environment."""
