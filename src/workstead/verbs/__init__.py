"""The verbs: everything a user can do. Only verbs use both the log and the drivers: intent, effect, fact."""
