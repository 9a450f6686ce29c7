"""Who a client is and what it may do: ACLs, SASL, TLS settings; pure rules, no sockets."""
