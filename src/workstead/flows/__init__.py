"""Verbs that combine other verbs: race, session, sweep, undo, repair."""
