"""Whoever has a log open: what it tells of it and commits, in this process or another."""
