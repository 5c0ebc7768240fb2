"""`./run compose-test`: brings deploy/docker-compose.yml up on a real engine and works with it from outside."""
