"""What one can do. A verb is the only place where the log and the drivers meet: intent, effect, fact."""
