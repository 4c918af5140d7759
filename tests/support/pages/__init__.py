"""What is wrong with a page for the people who read it, asked in a real browser."""
