"""Proof that records are gone (DESIGN §1 "proof"); only looks.

Every file of every given replica is looked through, and what that cannot see is said plainly: by
`lapse prove-erased`.
"""
