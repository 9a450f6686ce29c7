"""Histories: what stock clients did and saw, and what is wrong with it.

    recorder → events → (JSON lines) → judge → Verdict

`events` has the nouns, `promise` a topic's settings as times, `judge` the verdict; none of them
knows a broker. `files` holds Lapse's ledger against its files, and looks into any Kafka's logs.
"""
