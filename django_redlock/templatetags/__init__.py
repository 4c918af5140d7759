"""Where Django looks for template tags."""
