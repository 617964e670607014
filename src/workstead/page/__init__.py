"""The page: see and steer every agent. One live site on the server, for the owner; it calls the verbs like any door."""
