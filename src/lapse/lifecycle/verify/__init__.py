"""An independent check of a cleaning pass by any log cleaner: a log before it and after it.

It uses only code that reads batches, nothing of the round. `check.verify` is the entry point,
`lapse verify` the command.
"""
