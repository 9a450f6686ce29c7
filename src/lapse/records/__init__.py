"""Bytes ⇄ records: the v2 batch, its codecs, and what a producer may send."""
