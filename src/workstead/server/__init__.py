"""The HTTP door: parse, call one verb, answer.

guard.py      checks before any route runs: hosts, origins, tokens, sizes, URL encoding
app.py        the application with all routes
routes_*.py   the routes, by subject
streams.py    live streams of events and output
serve.py      `aw serve`: socket, signals, shutdown
"""
