"""What people type: one command a file, each a noun or a verb."""
