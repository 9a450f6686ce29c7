"""Kafka's messages as typed values, and the bytes they are on the wire.

`schema/` declares the messages, one file per API; `codec` turns a declaration into plain Python
functions; `envelope` puts header and body together; `framing` cuts a byte stream into frames;
`versions` is the table of what is advertised, with its quirks. Nothing here does I/O.
"""
