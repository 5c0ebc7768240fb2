"""`./run compose-test`: brings the Compose files up on a real engine and works with them from outside."""
