"""One file per API: behaviour, versions, who may, then the code. `table` lists them."""
