"""Start, confine, supervise and meter processes."""
