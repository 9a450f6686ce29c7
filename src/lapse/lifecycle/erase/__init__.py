"""Keys erased, and proof that their records are gone.

Every file of every given replica is looked through, and what that cannot see is said plainly: by
`lapse prove-erased`, which only looks, and at the end of `lapse erase`, which has them go.
"""
