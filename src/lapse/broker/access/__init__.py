"""Who may connect and what they may do: listeners, certificates, logins, the store of ACLs."""
