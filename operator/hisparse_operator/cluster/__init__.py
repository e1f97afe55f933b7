"""What is: reads, watches, the lease and the one writer. Everything here talks to the API server or to the hub."""
