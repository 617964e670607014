"""The HTTP door: parse, call one verb, answer.

guard.py      what is refused before anything is read: hosts, origins, tokens, sizes, spellings
app.py        the routes put together
routes_*.py   the routes, by what they are about
streams.py    events and output as they happen
serve.py      `aw serve`: the socket, the signals, the end
"""
