"""A virtual machine around a workspace: its guest, its process, and the way in."""
