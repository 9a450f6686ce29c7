"""A round over one huge log as tasks of bounded memory, stage after stage (see `rounds`)."""
