"""An independent check of a cleaning pass, whoever made it: a log before it and after it.

Uses nothing of the round: only what reads batches. `check.verify` is the way in, `lapse verify` the
command.
"""
