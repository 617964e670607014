"""A virtual machine around a workspace: its guest, its process, and its clients."""
