"""The door for models: the tools of the reference filesystem server, and our own, over the Model Context Protocol."""
