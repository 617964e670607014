"""The page: a live web interface to see and control every agent, for the owner; it calls the verbs like any door."""
