"""Django looks here for template tags."""
