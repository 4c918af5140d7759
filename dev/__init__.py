"""What people who work on the package need: museum, benchmarks, soaks, models, tools, nodes."""
