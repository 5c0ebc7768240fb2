"""Kills processes while runs are under way, and checks what really happened against the ledger. `./run faults`."""
