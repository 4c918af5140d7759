"""The recipes, a module for each kind. A recipe is the smallest lock that is true to its author."""
