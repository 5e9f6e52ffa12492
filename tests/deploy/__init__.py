"""What packs the server, and what `deploy/` configures: built and run for real (`make test-deploy`)."""
