"""One file per API: behaviour, versions, then the code. `broker.dispatch` lists them."""
