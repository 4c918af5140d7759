"""What people who work on the package need: museum, benchmarks, tools, and recipes of nodes."""
