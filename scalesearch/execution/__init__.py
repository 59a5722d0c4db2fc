"""Where trials run: a worker process per group of devices, reached through an executor."""
