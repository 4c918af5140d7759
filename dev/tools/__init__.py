"""What the project's maintainers run; no part of the package."""
