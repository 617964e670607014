"""The operating system layer: the only code that calls the operating system."""
