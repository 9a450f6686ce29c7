"""Keys erased, and proof that their records are gone.

`lapse prove-erased` looks through every file of every given replica and states plainly what that
cannot see; `lapse erase` first has the records removed and then does the same.
"""
