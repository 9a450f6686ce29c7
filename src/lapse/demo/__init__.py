"""`lapse demo`: a year of flights is written, cleaned and read back, and the end is proved.

`story` leads; `flights` has the records, `traffic` the stock clients, `house` runs and hurts
`lapse up`, `checks` reads files and ledgers.
"""
